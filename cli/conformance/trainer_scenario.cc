// A foreign trainer's run, from its registration to its end.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/wall_clock.h"
#include "cli/conformance/scenarios.h"
#include "cli/server.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"

namespace gnomon::cli {
namespace {

using Row = boost::json::object;
using Clock = std::chrono::steady_clock;

constexpr double kDamagePercent = 6;  // of a window whose plan has the guilty site in FP8
constexpr double kStandsStillSeconds = 2;
constexpr double kServeSeconds = 1;  // before what is waited for is looked at again

// The run's two verifiers, who agree. What they answer is made up: a model in which one site does
// damage in FP8 as long as `damage` says so.
class MadeUpVerifiers {
 public:
  MadeUpVerifiers(Server& server, const ClientOptions& access, std::string run, std::string label)
      : server_(server), client_(connect(access)), run_(std::move(run)), label_(std::move(label)) {}

  bool damage = false;

  void begin(const RunRegistration& registration) {
    registration_ = registration;
    const PrecisionPlan plan = PrecisionPlan::parse(registration.base_plan);
    for (const std::string& site : registration.sites) {
      if (guilty_.empty() && plan.resolve(site, registration.layers).any_fp8()) guilty_ = site;
    }
  }
  const std::string& guilty() const { return guilty_; }

  // Does what waits for them, for `seconds` at most.
  void serve(double seconds) {
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < until) {
      const bool one = serve_one("conformance-1"), other = serve_one("conformance-2");
      if (!one && !other) return;
    }
  }

 private:
  bool serve_one(const char* name) {
    LeaseRequest request{name, registration_.fingerprint};
    request.labels = {{"conformance", label_}};
    request.can.arms = {"bf16", "same", "plan", "fakequant", "bf16-perturbed"};
    const HttpResponse response = client_.checked("POST", "/v1/leases?wait=0", to_json(request));
    if (response.status == 204 || response.body.empty()) return false;
    const Lease lease = from_answer<Lease>(response.body);
    client_.checked("POST", fmt::format("/v1/leases/{}/complete", lease.lease),
                    to_json(answer(lease)));
    return true;
  }

  bool hurts(const std::string& toml) const {
    return damage && !guilty_.empty() &&
           PrecisionPlan::parse(toml).resolve(guilty_, registration_.layers).any_fp8();
  }
  std::string plan_text(int64_t version) {
    for (const boost::json::value& row : server_.get_list("/v1/runs/" + run_ + "/plans")) {
      if (integer_of(row.as_object(), "version") == version)
        return text_of(row.as_object(), "toml");
    }
    return registration_.base_plan;
  }

  ReplayResult answer(const Lease& lease) {
    const ReplayTask& task = lease.task;
    ReplayResult result;
    result.token = lease.token;
    result.fingerprint = registration_.fingerprint;
    result.time = now_seconds();
    const auto rows =
        server_.get_list(fmt::format("/v1/runs/{}/steps?from={}&to={}", run_, task.start_step + 1,
                                     task.start_step + task.steps));
    std::map<int64_t, Row> reported;  // of the window's attempt
    for (const boost::json::value& value : rows) {
      const Row& row = value.as_object();
      if (integer_of(row, "attempt") == task.attempt) reported[integer_of(row, "step")] = row;
    }
    int64_t plan_version = 0;
    for (int64_t step = task.start_step + 1; step <= task.start_step + task.steps; ++step) {
      ReplayStep replayed{step, 2.0};
      if (const auto found = reported.find(step); found != reported.end()) {
        plan_version = integer_of(found->second, "plan_version");
        replayed.loss = number_of(found->second, "loss");
        replayed.batch_hash = text_of(found->second, "batch_hash");
        if (task.arm == "same") {
          replayed.weights_hash = text_of(found->second, "weights_hash");
          if (const double norm = number_of(found->second, "grad_norm"); !std::isnan(norm))
            replayed.grad_norm = norm;
        }
      }
      if (replayed.weights_hash.empty())
        replayed.weights_hash = fmt::format("{}-{}-{}", task.arm, step, task.plan.size());
      result.steps.push_back(std::move(replayed));
    }
    const std::string run_plan = plan_text(plan_version);
    // No two windows of a real run end alike.
    const double flutter = 1e-4 * std::sin(static_cast<double>(task.start_step));
    const double reference = 2 - 1e-7 * static_cast<double>(task.start_step);
    const bool bf16 = task.arm.starts_with("bf16");
    const bool run_hurts = hurts(run_plan);
    const bool replay_hurts = !bf16 && hurts(task.plan.empty() ? run_plan : task.plan);
    const auto end = [&](bool hurt) { return reference * (1 + (hurt ? kDamagePercent / 100 : 0)); };
    result.replay_end_loss_bf16 = end(replay_hurts);
    result.start_loss_bf16 = reference;
    result.start_loss_plan = reference * 1.001;
    result.run_end_loss_bf16 = end(run_hurts) * (1 + flutter);
    result.heldout_tokens = 4096;
    result.replay_seconds = result.eval_seconds = 0.01;
    return result;
  }

  Server& server_;
  HttpClient client_;
  std::string run_;
  std::string label_;
  RunRegistration registration_;
  std::string guilty_;
};

class TrainerCheck {
 public:
  TrainerCheck(const TrainerScenario& scenario, Checks& checks)
      : scenario_(scenario), checks_(checks), server_(scenario.access) {}

  void run_all() {
    if (!wait_for_registration()) return;
    look_at_registration();
    if (!first_window()) return;
    look_at_steps();
    if (!ask_for_checkpoint() || !ask_for_pause()) return end();
    if (contain()) give_back();
    end();
  }

 private:
  boost::json::array rows(const std::string& what) { return server_.get_list(base_ + what); }
  Row run() { return server_.get(base_).as_object(); }
  int64_t newest_step() { return integer_of(run(), "step"); }

  // Serves the verifiers' leases meanwhile.
  bool wait_until(const std::string& what, const std::function<bool()>& seen) {
    return checks_.wait_until(what, scenario_.patience_seconds, [&] {
      if (seen()) return true;
      if (verifiers_) verifiers_->serve(kServeSeconds);
      return false;
    });
  }

  bool wait_for_registration() {
    const bool found = wait_until(fmt::format("for the run {} to register", scenario_.run), [&] {
      try {
        id_ = server_.resolve_run(scenario_.run);
        return true;
      } catch (const ConfigError&) {
        return false;
      }
    });
    if (!found) {
      checks_.failed("registration",
                     fmt::format("no run {} registered within {} s; start the trainer with this "
                                 "controller's URL",
                                 scenario_.run, scenario_.patience_seconds));
      return false;
    }
    base_ = "/v1/runs/" + id_;
    registration_ = from_answer<RunRegistration>(boost::json::serialize(run().at("registration")));
    return true;
  }

  void look_at_registration() {
    checks_.passed("registration", fmt::format("{} sites in {} layers, a checkpoint every {} steps",
                                               registration_.sites.size(), registration_.layers,
                                               registration_.checkpoint_every));
    checks_.expect(registration_.checkpoint_every > 0, "checkpoint_every", "it is said",
                   "it is 0: without checkpoints nothing can be verified");
    for (const auto& [name, value] :
         {std::pair("framework", registration_.framework),
          std::pair("checkpoint_format", registration_.checkpoint_format)}) {
      if (value.empty())
        checks_.noted(name, "not said: verifiers that cannot read the run's checkpoints are asked");
    }
    if (registration_.total_steps == 0)
      checks_.noted("total_steps", "not said: nobody can say how far the run is");
    if (registration_.tokens_per_step == 0)
      checks_.noted("tokens_per_step", "not said: throughput is not shown");
  }

  void set_policy() {
    const int64_t window = std::max<int64_t>(1, registration_.checkpoint_every);
    label_ = fmt::format("{}-{}", id_, ::getpid());
    const std::string policy = fmt::format(
        "mode = \"enforce\"\n[window]\nevery = {0}\nsteps = {0}\n[verifier]\nrequires = "
        "[\"conformance={1}\", \"backend=*\"]\nlease_ttl_seconds = 60.0\n[instrument]\nevery = 0\n"
        "[triage]\npairs = 0\n[attribution]\nscores = false\n[return]\nquiet_windows = 1\n"
        "[directives]\ntimeout_seconds = {2:.1f}\n",
        window, label_, scenario_.patience_seconds);
    connect(scenario_.access).checked("PUT", base_ + "/policy", policy);
    verifiers_.emplace(server_, scenario_.access, id_, label_);
    verifiers_->begin(registration_);
  }

  bool first_window() {
    set_policy();
    const bool measured = wait_until("for the first window between two checkpoints", [&] {
      return std::ranges::any_of(rows("/windows"), [](const boost::json::value& row) {
        return text_of(row.as_object(), "state") == "quiet";
      });
    });
    return checks_.expect(
        measured, "window", "a window between two reported checkpoints was replayed and is quiet",
        fmt::format("no window could be measured: {} steps and {} checkpoints are reported. A "
                    "window needs POST …/checkpoints at its start and its end",
                    rows("/steps").size(), rows("/checkpoints").size()));
  }

  void look_at_steps() {
    const boost::json::array steps = rows("/steps");
    std::map<int64_t, int64_t> last;  // of each attempt
    int64_t gaps = 0, finite = 0, timed = 0, hashed = 0, batches = 0, norms = 0;
    for (const boost::json::value& value : steps) {
      const Row& row = value.as_object();
      const auto found = last.find(integer_of(row, "attempt"));
      if (found != last.end() && integer_of(row, "step") != found->second + 1) ++gaps;
      last[integer_of(row, "attempt")] = integer_of(row, "step");
      finite += std::isfinite(number_of(row, "loss")) ? 1 : 0;
      norms += std::isfinite(number_of(row, "grad_norm")) ? 1 : 0;
      timed += number_of(row, "step_seconds") > 0 ? 1 : 0;
      hashed += text_of(row, "weights_hash").empty() ? 0 : 1;
      batches += text_of(row, "batch_hash").empty() ? 0 : 1;
    }
    const auto count = static_cast<int64_t>(steps.size());
    checks_.expect(gaps == 0, "steps", fmt::format("{} steps, without a gap", count),
                   fmt::format("{} of {} steps do not follow the one before: each step is reported "
                               "once, 1 by 1",
                               gaps, count));
    checks_.expect(
        finite == count, "loss", "every step has one",
        fmt::format("{} of {} steps have a loss that is not finite", count - finite, count));
    if (norms < count)
      checks_.noted("grad_norm", "not said of every step: a spike is seen in losses alone");
    checks_.expect(timed == count, "step_seconds", "every step has one",
                   "not said of every step: what verification costs cannot be known");
    if (batches < count)
      checks_.noted("batch_hash",
                    "not said of every step: data that a replay reads otherwise is taken for harm");
    if (hashed < count && registration_.capabilities.exact_replay)
      checks_.failed("weights_hash",
                     "capabilities.exact_replay is true and not every step has one: say the hash "
                     "of the weights after each update, or exact_replay = false");
  }

  // Asks as an operator; returns the directive's number.
  int64_t ask(OverrideKind kind) {
    OverrideRequest request;
    request.kind = kind;
    request.owner = "gnomon conformance";
    request.reason = "conformance of the trainer";
    return from_answer<OverrideAccepted>(server_.post(base_ + "/overrides", to_json(request)))
        .directive;
  }
  std::optional<Row> directive(const std::function<bool(const Row&)>& wanted) {
    for (const boost::json::value& row : rows("/directives")) {
      if (wanted(row.as_object())) return row.as_object();
    }
    return std::nullopt;
  }
  std::optional<Row> directive(int64_t number) {
    return directive([&](const Row& row) { return integer_of(row, "number") == number; });
  }
  // Its row once it was applied or rejected; nothing, and a failure, where it is not answered.
  std::optional<Row> answered(const std::string& name, int64_t number) {
    std::string state = "missing";
    const bool ended = wait_until(fmt::format("for directive {} ({})", number, name), [&] {
      if (const auto row = directive(number)) state = text_of(*row, "state");
      return state == "applied" || state == "rejected";
    });
    if (ended) return directive(number);
    checks_.failed(name, fmt::format("directive {} is {}: long-poll GET "
                                     "…/directives?after=N&wait=30s and answer POST "
                                     "…/directives/{}/ack with state acknowledged, then applied at "
                                     "the end of a step",
                                     number, state, number));
    return std::nullopt;
  }
  bool applied(const std::string& name, int64_t number) {
    const std::optional<Row> row = answered(name, number);
    if (!row) return false;
    if (text_of(*row, "state") == "applied") return true;
    checks_.failed(name, fmt::format("the trainer refused it: {}", text_of(*row, "reject_reason")));
    return false;
  }

  bool ask_for_checkpoint() {
    const int64_t number = ask("checkpoint_now");
    const std::optional<Row> row = answered("checkpoint_now", number);
    if (!row) return false;
    if (text_of(*row, "state") == "rejected") {
      checks_.noted("checkpoint_now", fmt::format("the trainer takes none on order: {}",
                                                  text_of(*row, "reject_reason")));
      return true;
    }
    const int64_t step = integer_of(*row, "applied_step");
    const bool there = wait_until("for that checkpoint", [&] {
      return std::ranges::any_of(rows("/checkpoints"), [&](const boost::json::value& known) {
        return integer_of(known.as_object(), "step") >= step;
      });
    });
    return checks_.expect(there, "checkpoint_now", "applied, and the checkpoint is reported",
                          fmt::format("applied after step {}, and no checkpoint of that step or a "
                                      "later one was reported",
                                      step));
  }

  bool ask_for_pause() {
    if (!applied("pause", ask("pause"))) return false;
    const int64_t before = newest_step();
    std::this_thread::sleep_for(std::chrono::duration<double>(kStandsStillSeconds));
    const int64_t during = newest_step();
    checks_.expect(
        during <= before + 1, "pause", "the trainer stands still",
        fmt::format("steps {} to {} were trained after it was applied", before + 1, during));
    if (!applied("resume", ask("resume"))) return false;
    const bool goes_on = wait_until("for the next step", [&] { return newest_step() > during; });
    return checks_.expect(goes_on, "resume", "it goes on", "no step came after it was applied");
  }

  // The verifiers find damage from now on.
  bool contain() {
    if (verifiers_->guilty().empty()) {
      checks_.noted("containment", "the base plan has no FP8: nothing can be taken out of it");
      return false;
    }
    int64_t before = 0;
    for (const boost::json::value& row : rows("/directives"))
      before = std::max(before, integer_of(row.as_object(), "number"));
    verifiers_->damage = true;
    const auto acts = [&](const Row& row) {
      const std::string kind = text_of(row, "kind");
      return integer_of(row, "number") > before && (kind == "rollback" || kind == "set_plan");
    };
    const bool ordered = wait_until("for damage by FP8 to be found in a window and acted upon",
                                    [&] { return directive(acts).has_value(); });
    if (!checks_.expect(ordered, "alarm", "damage was found and an action ordered",
                        "no action was ordered: see `gnomon decisions` of the run"))
      return false;
    const Row order = *directive(acts);
    contained_by_ = integer_of(order, "number");
    const std::string kind = text_of(order, "kind");
    if (registration_.capabilities.when == "restart" ||
        (kind == "rollback" && registration_.capabilities.rollback == "restart"))
      checks_.print("the trainer says that it takes this when it is started again: restart it now");
    if (!applied(kind, integer_of(order, "number"))) return false;
    return look_at_plan(kind, *directive(integer_of(order, "number")));
  }

  bool look_at_plan(const std::string& kind, const Row& order) {
    const int64_t version = integer_of(order, "plan_version");
    const int64_t attempt = integer_of(run(), "attempt");
    const bool runs = wait_until("for a step under that plan", [&] {
      const Row now = run();
      return integer_of(now, "plan_version") == version && integer_of(now, "attempt") >= attempt;
    });
    checks_.expect(runs, kind + " plan", fmt::format("steps report plan {}", version),
                   fmt::format("no step reports plan_version {}: it is said with each step from "
                               "the one on that runs under it",
                               version));
    if (kind == "rollback") look_at_attempt(integer_of(order, "to_step"));
    return runs;
  }

  void look_at_attempt(int64_t to_step) {
    const Row now = run();
    const Row& newest = now.at("attempts").as_array().back().as_object();
    checks_.expect(
        text_of(newest, "cause") == "rollback" && integer_of(newest, "base_step") == to_step,
        "attempt",
        fmt::format("attempt {} began after step {}", integer_of(newest, "attempt"), to_step),
        fmt::format("after the rollback to step {} the newest attempt is {} ({} from "
                    "step {}): POST …/attempts with cause rollback and base_step {}",
                    to_step, integer_of(newest, "attempt"), text_of(newest, "cause"),
                    integer_of(newest, "base_step"), to_step));
  }

  // The damage is gone: probes pass, and the run's own plan comes back.
  void give_back() {
    verifiers_->damage = false;
    const auto returns = [&](const Row& row) {
      return text_of(row, "kind") == "set_plan" && integer_of(row, "number") > contained_by_;
    };
    const bool ordered = wait_until("for probes to pass and FP8 to come back",
                                    [&] { return directive(returns).has_value(); });
    if (!ordered)
      return checks_.noted("return",
                           "FP8 was not ordered back within the time; give it longer "
                           "(--patience) or more steps");
    if (applied("return", integer_of(*directive(returns), "number")))
      checks_.passed("return", "the run has its own plan again");
  }

  void end() {
    const int64_t number = ask("stop");
    if (!applied("stop", number)) return;
    const bool ended =
        wait_until("for the run to end", [&] { return text_of(run(), "state") != "live"; });
    checks_.expect(ended && text_of(run(), "state") == "stopped", "finished",
                   "the run was reported as stopped",
                   fmt::format("the run is {}: POST …/finished with outcome stopped",
                               text_of(run(), "state")));
  }

  const TrainerScenario& scenario_;
  Checks& checks_;
  Server server_;
  std::string id_;
  std::string base_;
  std::string label_;
  RunRegistration registration_;
  int64_t contained_by_ = 0;  // a directive's number
  std::optional<MadeUpVerifiers> verifiers_;
};

}  // namespace

void check_trainer(const TrainerScenario& scenario, Checks& checks) {
  TrainerCheck(scenario, checks).run_all();
}

}  // namespace gnomon::cli
