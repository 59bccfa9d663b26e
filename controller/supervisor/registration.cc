// How runs come onto the record, and their attempts.
#include <fmt/format.h>

#include <cmath>

#include "controller/metrics/metrics.h"
#include "controller/refusal.h"
#include "controller/supervisor/run_cache.h"
#include "controller/trainer_fence.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "protocol/text.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_trainers.h"

namespace gnomon {
namespace {

// Bits are compared by fingerprint, so another one would change what was concluded.
std::string difference(const AttemptRow& known, const AttemptRow& repeated) {
  if (known.base_step != repeated.base_step || known.cause != repeated.cause ||
      known.plan_version != repeated.plan_version) {
    return fmt::format(
        "attempt {} is on record as a {} from step {} with plan {}, now it is a {} from "
        "step {} with plan {}",
        known.attempt, known.cause, known.base_step, known.plan_version, repeated.cause,
        repeated.base_step, repeated.plan_version);
  }
  if (known.fingerprint && repeated.fingerprint && known.fingerprint != repeated.fingerprint) {
    return fmt::format("the fingerprint of attempt {} was {} and now is {}", known.attempt,
                       *known.fingerprint, *repeated.fingerprint);
  }
  return {};
}

void check_registration(const RunRegistration& registration) {
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
  return {registration.name,
          registration.base_plan,
          registration.sites,
          registration.layers,
          registration.checkpoint_every,
          registration.total_steps,
          registration.last_directive,
          registration.newest_plan_version,
          registration.trainer_replays,
          registration.tokens_per_step,
          registration.trainer_confirms,
          registration.capabilities};
}

RunRegistered registered_as(int64_t run, const decide::State& state, const decide::Policy& policy) {
  return {run_name(run),
          ModeName::on_record(decide::mode_name(decide::mode_in_force(state, policy))),
          OnLossWord::on_record(policy.controller.on_loss), policy.controller.grace_seconds};
}

}  // namespace

AttemptRow known_attempt(Connection& connection, int64_t run, int64_t attempt) {
  if (std::optional<AttemptRow> known = ledger::find_attempt(connection, run, attempt)) {
    return *std::move(known);
  }
  const int64_t newest = ledger::newest_attempt(connection, run);
  throw Refusal(
      409, "Unknown attempt", fmt::format("attempt {} was never started", attempt),
      newest == 0
          ? "an attempt started with POST attempts (this run has none yet)"
          : fmt::format("an attempt started with POST attempts (the newest is {})", newest));
}

// Of a run that is on record under the same name and job.
RunRegistered RunCache::register_again(LedgerTransaction& transaction, Run& run,
                                       const RunRegistration& registration) {
  const RunRegistration& before = run.registration;
  if (before.sites != registration.sites || before.layers != registration.layers) {
    throw Refusal(
        409, "Another model under a known name",
        fmt::format("run {}/{} was registered with {} GEMM sites in {} layers, now with {} in {}",
                    registration.name, registration.job_id, before.sites.size(), before.layers,
                    registration.sites.size(), registration.layers),
        "the same model, or another job_id");
  }
  if (!same_texts(before, registration))
    from_request<RunRegistration>(to_json(registration));  // throws JsonError
  // Knowing more than the ledger: it was restored from an older copy.
  const bool other_settings = before.checkpoint_every != registration.checkpoint_every ||
                              before.total_steps != registration.total_steps ||
                              before.trainer_replays != registration.trainer_replays ||
                              before.trainer_confirms != registration.trainer_confirms ||
                              before.capabilities != registration.capabilities ||
                              before.tokens_per_step != registration.tokens_per_step ||
                              registration.last_directive >= run.state.next_directive ||
                              registration.newest_plan_version >= run.state.next_plan_version;
  run.registration = registration;
  Connection& connection = transaction.connection();
  ledger::set_registration(connection, run.id, to_json(registration));
  set_terms_on_commit(transaction, run);
  if (other_settings) {
    hear(transaction, run, registered_event(registration));
  }
  for (const InjectedFault& fault : registration.faults) {
    ledger::insert_fault(connection, run.id, fault);
  }
  return registered_as(run.id, run.state, run.policy);
}

void RunCache::take_over(LedgerTransaction& transaction, int64_t id,
                         const TrainerProcess& process) {
  Connection& connection = transaction.connection();
  // By this clock, whatever that of the trainer's host says.
  const double started_at = now() - process.running_seconds;
  const std::optional<ledger::TrainerRow> before = ledger::find_trainer(connection, id);
  if (process.incarnation.empty()) {
    if (before) ledger::forget_trainer(connection, id);
    return;
  }
  if (before && before->incarnation == process.incarnation) return;
  if (before && started_at <= before->started_at) {
    check_trainer(connection, id, process.incarnation);
  }
  ledger::set_trainer(connection, id, {process.incarnation, started_at});
  if (!before) return;
  ledger::insert_audit(
      connection, now(), id, "trainer_taken_over",
      fmt::format("{} has the run from {}, which started {:.0f} s before it", process.incarnation,
                  before->incarnation, started_at - before->started_at));
  // A poll of the other one ends.
  transaction.on_commit([this, id] { bells_.directives.of(id).ring(); });
}

RunRegistered RunCache::register_run(LedgerTransaction& transaction,
                                     const RunRegistration& registration,
                                     const TrainerProcess& process) {
  check_registration(registration);
  Connection& connection = transaction.connection();
  if (const std::optional<int64_t> known =
          ledger::find_run(connection, registration.name, registration.job_id)) {
    load(transaction, *known);  // refuses one that is being deleted
    take_over(transaction, *known, process);
    return register_again(transaction, load(transaction, *known), registration);
  }
  // NAME/JOB_ID is what people, metrics and alerts call a run: its last slash must part the two. A
  // run that is on record otherwise goes on.
  require(registration.job_id.find('/') == std::string::npos, "job_id", registration.job_id,
          "a text without \"/\"");
  from_request<RunRegistration>(to_json(registration));  // throws JsonError
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
  take_over(transaction, id, process);
  transaction.on_commit([this, id, label = run.label] { metrics_.start_run(id, label, {}); });
  hear(transaction, run, registered_event(registration));
  stream(transaction, id, "run", fmt::format(R"({{"run":"{}","state":"live"}})", run_name(id)));
  return registered_as(id, run.state, run.policy);
}

ReportAck RunCache::start_attempt(LedgerTransaction& transaction, int64_t id,
                                  const AttemptStart& attempt) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  require_step_of(run.registration, attempt.base_step, "base_step", 0);
  AttemptRow fresh{
      id, attempt.attempt, attempt.base_step, attempt.cause, attempt.plan_version, attempt.time,
      {}, attempt.host};
  if (attempt.fingerprint) {
    fresh.fingerprint = to_json(*attempt.fingerprint);
  }
  if (std::optional<AttemptRow> known = ledger::find_attempt(connection, id, attempt.attempt)) {
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
  check_plan(connection, run, attempt.plan_version);
  if (run.life != "live") revive(transaction, run);
  ledger::insert(connection, fresh);
  set_terms_on_commit(transaction, run);
  hear(transaction, run,
       decide::AttemptStarted{attempt.attempt, attempt.base_step, attempt.cause,
                              attempt.plan_version, attempt.host});
  show_layers(transaction, run, attempt.plan_version);
  transaction.on_commit([this, id, number = attempt.attempt] {
    metrics_.update_run(id, [&](RunNumbers& numbers) { numbers.attempt = number; });
  });
  return ack(transaction, run, 1, 0);
}

void RunCache::revive(LedgerTransaction& transaction, Run& run) {
  ledger::revive_run(transaction.connection(), run.id);
  run.life = "live";
  // Its series may have been dropped: they begin anew with what is on record.
  save(transaction, run);
  RunNumbers numbers = load_run_numbers(transaction.connection(), run.id);
  add_state(numbers, run.state, run.policy);
  transaction.on_commit([this, id = run.id, label = run.label, numbers = std::move(numbers)] {
    metrics_.start_run(id, label, numbers);
  });
}

void RunCache::go_on(LedgerTransaction& transaction, Run& run, const StepReport& step) {
  const std::string before = run.life;
  revive(transaction, run);
  set_terms_on_commit(transaction, run);
  hear(transaction, run,
       decide::AttemptStarted{step.attempt, step.step - 1, decide::kOnceMore, step.plan_version});
  ledger::insert_audit(transaction.connection(), now(), run.id, "run_goes_on",
                       fmt::format("it was {}, and its trainer reports step {} of attempt {}",
                                   before, step.step, step.attempt));
  stream(transaction, run.id, "run",
         fmt::format(R"({{"run":"{}","state":"live"}})", run_name(run.id)));
}

}  // namespace gnomon
