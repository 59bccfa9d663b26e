// What foreign verifiers answer about a window of a foreign run.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/wall_clock.h"
#include "cli/conformance/scenarios.h"
#include "cli/server.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"

namespace gnomon::cli {
namespace {

using Row = boost::json::object;

constexpr double kPlausiblePercent = 5;
constexpr double kMadeUpLoss = 2;  // of the steps: nothing is concluded from it

class VerifierCheck {
 public:
  VerifierCheck(const VerifierScenario& scenario, Checks& checks)
      : scenario_(scenario), checks_(checks), server_(scenario.access) {}

  void run_all() {
    begin();
    train(scenario_.start_step, scenario_.start_step + scenario_.steps);
    report_checkpoint(scenario_.end, scenario_.start_step + scenario_.steps);
    if (!look_at("bf16", "shadow")) return end();
    look_at_repetition();
    spike();
    look_at("same", "triage");
    end();
  }

 private:
  boost::json::array rows(const std::string& what) { return server_.get_list(base_ + what); }

  // A run of which nobody but the document knows anything.
  void begin() {
    RunRegistration run;
    run.name = "conformance";
    run.job_id = fmt::format("{}-{}", static_cast<int64_t>(now_seconds()), ::getpid());
    run.fingerprint = {"not known", "other", "not known", "conformance", 1, 0};
    PrecisionPlan plan = PrecisionPlan::fp8();
    plan.version = 1;
    run.base_plan = scenario_.plan.empty() ? plan.to_toml() : scenario_.plan;
    run.sites = {"lm_head"};  // something in FP8, or nothing is verified
    run.layers = 1;
    run.checkpoint_every = scenario_.steps;
    run.total_steps = scenario_.start_step + 4 * scenario_.steps;
    run.framework = scenario_.framework;
    run.checkpoint_format = scenario_.checkpoint_format;
    run.capabilities.exact_replay = false;
    const std::string id = from_answer<RunRegistered>(server_.post("/v1/runs", to_json(run))).run;
    base_ = "/v1/runs/" + id;
    const std::string policy = fmt::format(
        "mode = \"observe\"\n[window]\nevery = {0}\nsteps = {0}\n[instrument]\nevery = 0\n"
        "[verifier]\nrequires = [\"backend=*\"]\n[triage]\npairs = 0\n",
        scenario_.steps);
    connect(scenario_.access).checked("PUT", base_ + "/policy", policy);
    AttemptStart attempt{1, scenario_.start_step, "start", 1};
    attempt.time = now_seconds();
    server_.post(base_ + "/attempts", to_json(attempt));
    report_checkpoint(scenario_.start, scenario_.start_step);
    checks_.print(fmt::format("run {} of {}: start your verifier at this controller", id,
                              run.name + "/" + run.job_id));
  }

  void report_checkpoint(const std::string& uri, int64_t step) {
    CheckpointReport report;
    report.step = step;
    report.uri = uri;
    report.plan_version = 1;
    report.time = now_seconds();
    server_.post(base_ + "/checkpoints", to_json(report));
  }

  void train(int64_t from, int64_t to) {
    StepBatch batch;
    for (int64_t step = from + 1; step <= to; ++step) batch.steps.push_back(made_up(step));
    server_.post(base_ + "/steps", to_json(batch));
  }
  static StepReport made_up(int64_t step) {
    StepReport report;
    report.step = step;
    report.plan_version = 1;
    report.loss = kMadeUpLoss;
    report.step_seconds = 1;
    report.time = now_seconds();
    return report;
  }

  // A step that is not finite is looked into: the arm `same` first.
  void spike() {
    const int64_t end = scenario_.start_step + scenario_.steps;
    StepReport report = made_up(end + 1);
    report.loss = std::numeric_limits<double>::quiet_NaN();
    server_.post(base_ + "/steps", to_json(StepBatch{{report}}));
  }

  boost::json::array replays(const std::string& arm, const std::string& purpose) {
    boost::json::array found;
    for (boost::json::value& value : rows("/replays")) {
      const Row& row = value.as_object();
      if (text_of(row, "arm") == arm && (purpose.empty() || text_of(row, "purpose") == purpose))
        found.push_back(std::move(value));
    }
    return found;
  }
  static bool is_over(const boost::json::array& replays) {
    return std::ranges::any_of(replays, [](const boost::json::value& row) {
      const std::string state = text_of(row.as_object(), "state");
      return state == "done" || state == "failed";
    });
  }
  bool wait_until(const std::string& what, const std::function<bool()>& seen) {
    return checks_.wait_until(what, scenario_.patience_seconds, seen);
  }

  bool look_at(const std::string& arm, const std::string& purpose) {
    const bool over = wait_until(fmt::format("for a replay of arm {}", arm),
                                 [&] { return is_over(replays(arm, purpose)); });
    const boost::json::array found = replays(arm, purpose);
    if (!over) {
      checks_.failed(arm, found.empty()
                              ? "it was not asked for: see `gnomon decisions` of the run"
                              : fmt::format("the replay is {} still: POST /v1/leases?wait=30s with "
                                            "checkpoint_formats [\"{}\"] and frameworks [\"{}\"]",
                                            text_of(found[0].as_object(), "state"),
                                            scenario_.checkpoint_format, scenario_.framework));
      return false;
    }
    const Row& row = found[0].as_object();
    if (text_of(row, "state") == "failed") {
      const std::string why = text_of(row, "fail_reason");
      if (why.starts_with(kNobodyCan)) {
        checks_.noted(arm, "the verifier does not do it: " + why);
        return false;
      }
      checks_.failed(arm, "the replay failed: " + why);
      return false;
    }
    if (look_at_numbers(arm, row, purpose == "shadow")) return true;
    checks_.print("the rest is looked at when this is right");
    return false;
  }

  // True where the window could be judged.
  bool look_at_numbers(const std::string& arm, const Row& row, bool endpoints) {
    bool judged = true;
    const auto needed = [&](const char* member, const char* what) {
      const double value = number_of(row, member);
      judged &= checks_.expect(std::isfinite(value), arm + " " + member,
                               fmt::format("{} is {:.4f}", what, value),
                               fmt::format("missing or not finite: {}", what));
      return value;
    };
    const double end =
        needed("replay_end_loss_bf16", "the held-out loss at the replay's end, evaluated in BF16");
    checks_.expect(number_of(row, "replay_seconds") > 0, arm + " replay_seconds",
                   "what it took is said", "0: what verification costs cannot be known");
    if (endpoints) {
      const double own =
          needed("run_end_loss_bf16", "the held-out loss of the run's own end checkpoint, in BF16");
      needed("start_loss_bf16", "the held-out loss of the checkpoint, in BF16");
      if (!std::isfinite(number_of(row, "start_loss_plan")))
        checks_.noted(arm + " start_loss_plan",
                      "missing: a scale that drifts is not seen at equal weights");
      if (!std::isfinite(number_of(row, "gap_error")))
        checks_.noted(arm + " gap_error", "missing: the gap's own error is not known");
      const double percent = 100 * (own - end) / end;
      if (std::isfinite(percent) && std::abs(percent) > kPlausiblePercent)
        checks_.failed(arm + " gap",
                       fmt::format("the run's end lies {:+.1f}% beside the replay's. Of a run that "
                                   "is well they are equal to a fraction of a per cent: is the "
                                   "same held-out text evaluated, and are the batches the run's?",
                                   percent));
    }
    look_at_fingerprint(arm, row);
    return judged;
  }

  void look_at_fingerprint(const std::string& arm, const Row& row) {
    const boost::json::value* value = row.if_contains("fingerprint");
    const bool said =
        value != nullptr && value->is_object() && !text_of(value->as_object(), "device").empty();
    if (!said)
      checks_.noted(arm + " fingerprint", "no device: bits of two verifiers are never compared");
  }

  // Where one verifier is alone it is asked again.
  void look_at_repetition() {
    const bool twice = wait_until("for the same replay a second time", [&] {
      const boost::json::array all = replays("bf16", "");
      return std::ranges::count_if(all, [](const boost::json::value& row) {
               return text_of(row.as_object(), "state") == "done";
             }) >= 2;
    });
    if (!twice) return checks_.noted("repetition", "the window was not replayed a second time");
    const boost::json::array all = replays("bf16", "");
    const double first = number_of(all[0].as_object(), "replay_end_loss_bf16");
    const double second = number_of(all[1].as_object(), "replay_end_loss_bf16");
    if (first == second)
      return checks_.passed("repetition", "the same bits: its runs may claim exact_replay");
    const double percent = 100 * std::abs(first - second) / first;
    if (percent < 0.1)
      return checks_.noted("repetition",
                           fmt::format("the second replay ended {:.4f}% beside the first: its runs "
                                       "register with exact_replay = false",
                                       percent));
    checks_.failed("repetition",
                   fmt::format("the second replay of one window ended {:.2f}% beside the first: is "
                               "the data's order fixed, and random state restored?",
                               percent));
  }

  void end() {
    RunFinished finished;
    finished.outcome = "stopped";
    finished.step = scenario_.start_step + scenario_.steps;
    finished.time = now_seconds();
    server_.post(base_ + "/finished", to_json(finished));
  }

  const VerifierScenario& scenario_;
  Checks& checks_;
  Server server_;
  std::string base_;
};

}  // namespace

void check_verifier(const VerifierScenario& scenario, Checks& checks) {
  VerifierCheck(scenario, checks).run_all();
}

}  // namespace gnomon::cli
