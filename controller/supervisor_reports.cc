// What trainers report: runs, attempts, steps, checkpoints, the end.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "controller/json_rows.h"
#include "controller/metrics/totals.h"
#include "controller/refusal.h"
#include "controller/replay_join.h"
#include "controller/supervisor.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "protocol/text_rules.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_notices.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// A state is written down with everything but steps without effects, and with those after:
constexpr double kSaveSeconds = 1;
constexpr int64_t kUnsavedMax = 4096;  // events
// Far above any run, far below where sums of steps would overflow.
constexpr int64_t kStepMax = 1'000'000'000'000;
constexpr double kSecondsMax = 1e9;  // sums of such stay finite

// The first member in which a repeated report differs from the one on record, in words; empty when
// none does.
std::string difference(const StepReport& known, const StepReport& repeated) {
  auto differs = [](const char* member, const auto& before, const auto& after) {
    return fmt::format("{} was {} and now is {}", member, before, after);
  };
  if (!same_bits(known.loss, repeated.loss)) return differs("loss", known.loss, repeated.loss);
  if (!same_bits(known.grad_norm, repeated.grad_norm))
    return differs("grad_norm", known.grad_norm, repeated.grad_norm);
  if (known.weights_hash != repeated.weights_hash)
    return differs("weights_hash", known.weights_hash, repeated.weights_hash);
  if (known.batch_hash != repeated.batch_hash)
    return differs("batch_hash", known.batch_hash, repeated.batch_hash);
  if (known.plan_version != repeated.plan_version)
    return differs("plan_version", known.plan_version, repeated.plan_version);
  return {};
}

std::string difference(const CheckpointReport& known, const CheckpointReport& repeated) {
  auto differs = [](const char* member, const auto& before, const auto& after) {
    return fmt::format("{} was {} and now is {}", member, before, after);
  };
  if (known.uri != repeated.uri) return differs("uri", known.uri, repeated.uri);
  if (known.manifest_hash != repeated.manifest_hash)
    return differs("manifest_hash", known.manifest_hash, repeated.manifest_hash);
  if (known.weights_hash != repeated.weights_hash)
    return differs("weights_hash", known.weights_hash, repeated.weights_hash);
  return {};
}

// Bits are compared by fingerprint, so another one would change what was concluded.
std::string difference(const ledger::AttemptRow& known, const ledger::AttemptRow& repeated) {
  const AttemptStart& before = known.start;
  const AttemptStart& now = repeated.start;
  if (before.base_step != now.base_step || before.cause != now.cause ||
      before.plan_version != now.plan_version) {
    return fmt::format(
        "attempt {} is on record as a {} from step {} with plan {}, now it is a {} from "
        "step {} with plan {}",
        now.attempt, before.cause, before.base_step, before.plan_version, now.cause, now.base_step,
        now.plan_version);
  }
  if (known.fingerprint && repeated.fingerprint && known.fingerprint != repeated.fingerprint) {
    return fmt::format("the fingerprint of attempt {} was {} and now is {}", now.attempt,
                       *known.fingerprint, *repeated.fingerprint);
  }
  return {};
}

void require(bool condition, const char* member, const std::string& value,
             const std::string& accepted) {
  if (!condition) {
    throw Refusal(400, "Value not accepted", fmt::format("{} is {}", member, value), accepted);
  }
}

void require_step(int64_t value, const char* member, int64_t least) {
  require(value >= least && value <= kStepMax, member, fmt::format("{}", value),
          fmt::format("{} to {}", least, kStepMax));
}

void check_registration(const RunRegistration& registration) {
  require(!registration.name.empty() && registration.name.size() <= 200, "name",
          fmt::format("\"{}\"", registration.name), "1 to 200 bytes");
  require(registration.job_id.size() <= 200, "job_id", fmt::format("\"{}\"", registration.job_id),
          "at most 200 bytes");
  require(registration.layers >= 0, "layers", fmt::format("{}", registration.layers), "0 or more");
  require(registration.checkpoint_every >= 0 && registration.checkpoint_every <= kStepMax,
          "checkpoint_every", fmt::format("{}", registration.checkpoint_every),
          "0 (none) to 1000000000000");
  require_step(registration.total_steps, "total_steps", 0);
  require_step(registration.tokens_per_step, "tokens_per_step", 0);
  require_step(registration.last_directive, "last_directive", 0);
  require_step(registration.newest_plan_version, "newest_plan_version", 0);
  require(registration.sites.size() <= 100'000, "sites",
          fmt::format("{} names", registration.sites.size()), "at most 100000");
  PrecisionPlan::parse(registration.base_plan, "base_plan")
      .check_sites(registration.sites, registration.layers, "base_plan");
}

// Of a run that is on record: it goes on with the texts that it was registered with, whatever the
// rules are now.
bool same_texts(const RunRegistration& known, const RunRegistration& now) {
  const auto texts = [](const RunRegistration& from) {
    RunRegistration only;
    only.fingerprint = from.fingerprint;
    only.base_plan = from.base_plan;
    only.sites = from.sites;
    only.checkpoint_root = from.checkpoint_root;
    only.faults = from.faults;
    return to_json(only);
  };
  return texts(known) == texts(now);
}

decide::RunRegisteredEvent registered_event(const RunRegistration& registration) {
  return {
      registration.name,           registration.base_plan,           registration.sites,
      registration.layers,         registration.checkpoint_every,    registration.total_steps,
      registration.last_directive, registration.newest_plan_version, registration.trainer_replays,
      registration.tokens_per_step};
}

RunRegistered registered_as(int64_t run, const decide::State& state, const decide::Policy& policy) {
  return {run_name(run), std::string(decide::mode_name(decide::mode_in_force(state, policy))),
          policy.controller.on_loss, policy.controller.grace_seconds};
}

}  // namespace

ledger::AttemptRow known_attempt(Connection& connection, int64_t run, int64_t attempt) {
  if (std::optional<ledger::AttemptRow> known = ledger::find_attempt(connection, run, attempt)) {
    return *std::move(known);
  }
  const int64_t newest = ledger::newest_attempt(connection, run);
  throw Refusal(
      409, "Unknown attempt", fmt::format("attempt {} was never started", attempt),
      newest == 0
          ? "an attempt started with POST attempts (this run has none yet)"
          : fmt::format("an attempt started with POST attempts (the newest is {})", newest));
}

RunRegistered Supervisor::register_run(LedgerTransaction& transaction,
                                       const RunRegistration& registration) {
  check_registration(registration);
  Connection& connection = transaction.connection();
  std::optional<int64_t> known =
      ledger::find_run(connection, registration.name, registration.job_id);
  if (known) {
    Run& run = load(transaction, *known);
    if (run.registration.sites != registration.sites ||
        run.registration.layers != registration.layers) {
      throw Refusal(
          409, "Another model under a known name",
          fmt::format("run {}/{} was registered with {} GEMM sites in {} layers, now with {} in {}",
                      registration.name, registration.job_id, run.registration.sites.size(),
                      run.registration.layers, registration.sites.size(), registration.layers),
          "the same model, or another job_id");
    }
    if (!same_texts(run.registration, registration)) check_texts(registration);
    // Knowing more than the ledger: it was restored from an older copy.
    const bool other_settings =
        run.registration.checkpoint_every != registration.checkpoint_every ||
        run.registration.total_steps != registration.total_steps ||
        run.registration.trainer_replays != registration.trainer_replays ||
        run.registration.tokens_per_step != registration.tokens_per_step ||
        registration.last_directive >= run.state.next_directive ||
        registration.newest_plan_version >= run.state.next_plan_version;
    run.registration = registration;
    ledger::set_registration(connection, run.id, to_json(registration));
    set_terms_on_commit(transaction, run);
    if (other_settings) {
      hear(transaction, run, registered_event(registration));
      save(transaction, run);
    }
    for (const InjectedFault& fault : registration.faults) {
      ledger::insert_fault(connection, run.id, fault);
    }
    return registered_as(run.id, run.state, run.policy);
  }
  // NAME/JOB_ID is what people, metrics and alerts call a run: its last slash must part the two. A
  // run that is on record otherwise goes on.
  require(registration.job_id.find('/') == std::string::npos, "job_id",
          fmt::format("\"{}\"", registration.job_id), "a text without \"/\"");
  check_texts(registration);
  const double time = now();
  std::string policy;
  {
    std::lock_guard lock(default_policy_mutex_);
    policy = options_.default_policy;
  }
  int64_t id =
      ledger::insert_run(connection, {0, registration.name, registration.job_id,
                                      to_json(registration), policy, "live", time, std::nullopt});
  for (const InjectedFault& fault : registration.faults) {
    ledger::insert_fault(connection, id, fault);
  }
  ledger::insert_plan(connection, id, PrecisionPlan::parse(registration.base_plan).version,
                      registration.base_plan, time);
  Run& run = load(transaction, id);
  transaction.on_commit([this, id, label = run.label] { metrics_.start_run(id, label, {}); });
  hear(transaction, run, registered_event(registration));
  save(transaction, run);
  stream(transaction, id, "run", fmt::format(R"({{"run":"{}","state":"live"}})", run_name(id)));
  return registered_as(id, run.state, run.policy);
}

ReportAck Supervisor::start_attempt(LedgerTransaction& transaction, int64_t id,
                                    const AttemptStart& attempt) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  require(attempt.cause == "start" || attempt.cause == "restart" || attempt.cause == "rollback",
          "cause", fmt::format("\"{}\"", attempt.cause), "start, restart or rollback");
  require_step(attempt.base_step, "base_step", 0);
  require(std::isfinite(attempt.time), "time", fmt::format("{}", attempt.time),
          "seconds since the epoch");
  require(attempt.host.size() <= 200, "host", fmt::format("\"{}\"", attempt.host),
          "at most 200 bytes");
  ledger::AttemptRow fresh{attempt, std::nullopt};
  if (attempt.fingerprint) {
    fresh.fingerprint = to_json(*attempt.fingerprint);
  }
  if (std::optional<ledger::AttemptRow> known =
          ledger::find_attempt(connection, id, attempt.attempt)) {
    if (std::string detail = difference(*known, fresh); !detail.empty()) {
      throw Refusal(
          409, "Attempt already started otherwise", detail,
          fmt::format("attempt {} for a new one", ledger::newest_attempt(connection, id) + 1),
          AuditNote{id, "conflicting_attempt", detail});
    }
    return ack(transaction, run, 0, 1);
  }
  int64_t newest = ledger::newest_attempt(connection, id);
  if (attempt.attempt != newest + 1) {
    throw Refusal(409, "Attempts are numbered without gaps",
                  fmt::format("attempt {} follows attempt {}", attempt.attempt, newest),
                  fmt::format("attempt {}", newest + 1));
  }
  if (run.life == "completed") {
    throw Refusal(409, "The run is completed",
                  fmt::format("{} was reported as completed", run.label),
                  "another job_id for a new run");
  }
  if (run.life != "live") {
    ledger::revive_run(connection, id);
    run.life = "live";
    transaction.on_commit([this, id] { metrics_.drop_run_at(id, -1); });
  }
  ledger::insert_attempt(connection, id, fresh);
  set_terms_on_commit(transaction, run);
  hear(transaction, run,
       decide::AttemptStarted{attempt.attempt, attempt.base_step, attempt.cause,
                              attempt.plan_version, attempt.host});
  show_layers(transaction, run, attempt.plan_version);
  save(transaction, run);
  transaction.on_commit([this, id, number = attempt.attempt] {
    metrics_.update_run(id, [&](RunSeries& series) { series.set_attempt(number); });
  });
  return ack(transaction, run, 1, 0);
}

void Supervisor::check_step(LedgerTransaction& transaction, Run& run, const StepReport& report) {
  Connection& connection = transaction.connection();
  if (!run.base_steps.contains(report.attempt)) {
    run.base_steps[report.attempt] =
        known_attempt(connection, run.id, report.attempt).start.base_step;
  }
  int64_t base_step = run.base_steps[report.attempt];
  require(report.step > base_step, "step", fmt::format("{}", report.step),
          fmt::format("above {}, where attempt {} began", base_step, report.attempt).c_str());
  require_step(report.step, "step", 1);
  require_step(report.tokens, "tokens", 0);
  require(report.step_seconds >= 0 && report.step_seconds <= kSecondsMax, "step_seconds",
          fmt::format("{}", report.step_seconds), "0 to 1e9 seconds");
  require(std::isfinite(report.learning_rate), "learning_rate",
          fmt::format("{}", report.learning_rate), "a finite number");
  if (report.device_health) check_health(*report.device_health);
}

ReportAck Supervisor::report_steps(LedgerTransaction& transaction, int64_t id,
                                   const StepBatch& batch) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  double time = now();
  std::vector<StepReport> fresh;
  bool wanted = false;
  for (const StepReport& report : batch.steps) {
    check_step(transaction, run, report);
    const Heard heard = hear_step(transaction, run, report, time);
    wanted |= heard.wanted;
    if (heard.fresh) {
      fresh.push_back(report);
      continue;
    }
    const std::optional<StepReport> known =
        ledger::find_step(connection, id, report.attempt, report.step);
    if (std::string conflict = difference(*known, report); !conflict.empty()) {
      std::string detail = fmt::format("attempt {} step {} is on record with other values: {}",
                                       report.attempt, report.step, conflict);
      throw Refusal(
          409, "Step already reported with other values", detail,
          "the values of the first report, or a new attempt; nothing of this batch was taken",
          AuditNote{id, "conflicting_step", detail});
    }
  }
  std::optional<std::pair<std::string, DeviceHealth>> newest_health;
  for (const StepReport& report : fresh) {
    if (report.device_health) {
      newest_health = {take_health(transaction, run, report), *report.device_health};
    }
  }
  int64_t accepted = static_cast<int64_t>(fresh.size());
  if (!fresh.empty()) {
    show_layers(transaction, run, fresh.back().plan_version);
    if (wanted || run.unsaved >= kUnsavedMax || steady_now() - run.saved_at >= kSaveSeconds) {
      save(transaction, run);
    } else {
      show(transaction, run);
    }
    transaction.on_commit([this, id, time, fresh = std::move(fresh), newest_health] {
      metrics_.update_run(id, [&](RunSeries& series) {
        for (const StepReport& report : fresh) {
          series.step(report, time);
        }
        if (newest_health) series.device_health(newest_health->first, newest_health->second);
      });
    });
  }
  return ack(transaction, run, accepted, static_cast<int64_t>(batch.steps.size()) - accepted);
}

namespace {

// A verifier reads what is named here, with its own rights.
void require_inside(const std::string& uri, const std::vector<std::string>& roots) {
  if (roots.empty()) return;
  const std::filesystem::path path(uri);
  const bool inside = path.is_absolute() && path == path.lexically_normal() &&
                      std::ranges::any_of(roots, [&](const std::string& root) {
                        const std::filesystem::path rest = path.lexically_relative(root);
                        return !rest.empty() && *rest.begin() != ".." && *rest.begin() != ".";
                      });
  require(inside, "uri", fmt::format("\"{}\"", uri),
          fmt::format("a path without \"..\" below one of: {}", fmt::join(roots, ", ")));
}

}  // namespace

ReportAck Supervisor::report_checkpoint(LedgerTransaction& transaction, int64_t id,
                                        const CheckpointReport& checkpoint) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  known_attempt(connection, id, checkpoint.attempt);
  require(!checkpoint.uri.empty() && checkpoint.uri.size() <= 4096, "uri",
          fmt::format("\"{}\"", checkpoint.uri), "1 to 4096 bytes");
  require_inside(checkpoint.uri, options_.checkpoint_roots);
  require_step(checkpoint.step, "step", 0);
  if (std::optional<CheckpointReport> known =
          ledger::find_checkpoint(connection, id, checkpoint.attempt, checkpoint.step)) {
    if (std::string conflict = difference(*known, checkpoint); !conflict.empty()) {
      std::string detail =
          fmt::format("the checkpoint of attempt {} step {} is on record with other values: {}",
                      checkpoint.attempt, checkpoint.step, conflict);
      throw Refusal(409, "Checkpoint already reported with other values", detail,
                    "the values of the first report, or a new attempt",
                    AuditNote{id, "conflicting_checkpoint", detail});
    }
    return ack(transaction, run, 0, 1);
  }
  ledger::insert_checkpoint(connection, id, checkpoint, now());
  hear(transaction, run,
       decide::CheckpointCompleted{checkpoint.attempt, checkpoint.step, checkpoint.uri,
                                   checkpoint.plan_version});
  save(transaction, run);
  return ack(transaction, run, 1, 0);
}

namespace {

constexpr size_t kNoticeTextMax = 16'384;

void check_notice(const TrainerNotice& notice, const RunRegistration& registration) {
  require(notice.kind == "checkpoint_failed" || notice.kind == "reports_dropped" ||
              notice.kind == "plan_without_controller",
          "kind", fmt::format("\"{}\"", notice.kind),
          "checkpoint_failed, reports_dropped or plan_without_controller");
  require(!notice.text.empty() && notice.text.size() <= kNoticeTextMax, "text",
          fmt::format("{} bytes", notice.text.size()), "1 to 16384 bytes");
  require(notice.attempt >= 0, "attempt", fmt::format("{}", notice.attempt), "0 or more");
  require_step(notice.step, "step", 0);
  require(std::isfinite(notice.time), "time", fmt::format("{}", notice.time),
          "seconds since the epoch");
  if (notice.kind != "plan_without_controller") {
    require(notice.plan.empty() && notice.plan_version == 0, "plan_version",
            fmt::format("{}", notice.plan_version),
            "no plan for a notice other than plan_without_controller");
    return;
  }
  require_step(notice.plan_version, "plan_version", 1);
  PrecisionPlan::parse(notice.plan, "plan")
      .check_sites(registration.sites, registration.layers, "plan");
}

}  // namespace

ReportAck Supervisor::report_notice(LedgerTransaction& transaction, int64_t id,
                                    const TrainerNotice& notice) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  check_notice(notice, run.registration);
  if (!add_notice(transaction, run, notice)) {
    return ack(transaction, run, 0, 1);
  }
  if (!notice.plan.empty()) {
    double time = now();
    ledger::insert_plan(connection, id, notice.plan_version, notice.plan, time);
    if (ledger::find_plan(connection, id, notice.plan_version) != notice.plan) {
      ledger::insert_audit(connection, time, id, "conflicting_plan",
                           fmt::format("plan {} of {} is on record with another text than the one "
                                       "the trainer took without the controller",
                                       notice.plan_version, run.label));
    }
  }
  return ack(transaction, run, 1, 0);
}

void Supervisor::note(LedgerTransaction& transaction, int64_t id, const std::string& kind,
                      const std::string& text) {
  const Run& run = load(transaction, id);
  TrainerNotice notice;
  notice.attempt = run.newest_step.first;
  notice.step = run.newest_step.second;
  notice.kind = kind;
  notice.text = text;
  notice.time = now();
  add_notice(transaction, run, notice);
}

bool Supervisor::add_notice(LedgerTransaction& transaction, const Run& run,
                            const TrainerNotice& notice) {
  Connection& connection = transaction.connection();
  const int64_t id = run.id;
  std::optional<int64_t> number = ledger::insert_notice(connection, id, notice, now());
  if (!number) return false;
  Query row = connection.query("SELECT * FROM notices WHERE run = ? AND notice = ?", id, *number);
  stream(transaction, id, "notice", first_row_as_json(row));
  tell_of_notice(transaction, run, notice, *number);
  transaction.on_commit([this, id, kind = notice.kind] {
    metrics_.update_run(id, [&](RunSeries& series) { series.notice(kind); });
  });
  return true;
}

ReportAck Supervisor::finish(LedgerTransaction& transaction, int64_t id,
                             const RunFinished& finished) {
  Run& run = load(transaction, id);
  require(finished.outcome == "completed" || finished.outcome == "stopped" ||
              finished.outcome == "failed",
          "outcome", fmt::format("\"{}\"", finished.outcome), "completed, stopped or failed");
  if (run.life == finished.outcome) {
    return ack(transaction, run, 0, 1);
  }
  if (run.life != "live") {
    throw Refusal(409, "The run has ended otherwise",
                  fmt::format("{} is {} on record, now it is said to be {}", run.label, run.life,
                              finished.outcome),
                  run.life);
  }
  ledger::finish_run(transaction.connection(), id, finished, now());
  run.life = finished.outcome;
  hear(transaction, run, decide::RunEnded{finished.outcome, finished.step});
  save(transaction, run);
  stream(transaction, id, "run",
         fmt::format(R"({{"run":"{}","state":"{}"}})", run_name(id), finished.outcome));
  transaction.on_commit([this, id, at = steady_now() + options_.series_keep_seconds] {
    metrics_.drop_run_at(id, at);
  });
  return ack(transaction, run, 1, 0);
}

ReportAck Supervisor::ack(LedgerTransaction& transaction, Run& run, int64_t accepted,
                          int64_t repeated) {
  if (!run.ack) {
    Connection& connection = transaction.connection();
    run.ack = {0, 0, ledger::protected_checkpoints(connection, run.id),
               ledger::last_directive(connection, run.id)};
  }
  ReportAck answer = *run.ack;
  answer.accepted = accepted;
  answer.repeated = repeated;
  return answer;
}

}  // namespace gnomon
