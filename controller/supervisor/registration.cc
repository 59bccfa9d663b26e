#include "controller/supervisor/registration.h"

#include <fmt/format.h>

#include <cmath>

#include "controller/auth/http_error.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor/checks.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "protocol/text.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_trainers.h"

namespace gnomon {
namespace {

void check_registration(const RunRegistration& registration) {
  PrecisionPlan::parse(registration.base_plan, "base_plan")
      .check_sites(registration.sites, registration.layers, "base_plan");
}

// A run on record goes on with the texts that it was registered with, whatever the rules are now.
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

// The run is on record under the same name and job.
RunRegistered register_again(WriteContext write, CachedRun& run,
                             const RunRegistration& registration) {
  const RunRegistration& before = run.registration;
  if (before.sites != registration.sites || before.layers != registration.layers) {
    throw HttpError(
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
  Connection& connection = write.transaction.connection();
  const std::string base_plan = before.base_plan;
  run.registration = registration;
  run.registration.base_plan = base_plan;
  ledger::set_registration(connection, run.id, to_json(run.registration));
  write.runs.set_terms_on_commit(write.transaction, run);
  if (other_settings) {
    write.runs.record_event(write.transaction, run, registered_event(run.registration));
  }
  for (const InjectedFault& fault : registration.faults) {
    ledger::insert_fault(connection, run.id, fault);
  }
  return registered_as(run.id, run.state, run.policy);
}

// Whose the run is from now on. Throws HttpError (409, kTrainerReplaced).
void take_over(WriteContext write, int64_t id, const TrainerProcess& process) {
  Connection& connection = write.transaction.connection();
  // By this clock, whatever that of the trainer's host says.
  const double started_at = write.runs.now() - process.running_seconds;
  const std::optional<ledger::TrainerRow> before = ledger::find_trainer(connection, id);
  if (process.incarnation.empty()) {
    if (before) ledger::forget_trainer(connection, id);
    return;
  }
  if (before && before->incarnation == process.incarnation) return;
  // A trainer of the future registered while this clock was ahead.
  const bool is_later = before && before->started_at <= write.runs.now();
  if (is_later && started_at <= before->started_at) {
    check_trainer(connection, id, process.incarnation);
  }
  ledger::set_trainer(connection, id, {process.incarnation, started_at});
  if (!before) return;
  ledger::insert_audit(
      connection, write.runs.now(), id, "trainer_taken_over",
      fmt::format("{} has the run from {}, which started {:.0f} s before it", process.incarnation,
                  before->incarnation, started_at - before->started_at));
  // A poll of the other one ends.
  write.transaction.on_commit(
      [&runs = write.runs, id] { runs.notifiers().directives.of(id).notify_all(); });
}

}  // namespace

RunRegistered register_run(WriteContext write, const RunRegistration& registration,
                           const TrainerProcess& process) {
  check_registration(registration);
  Connection& connection = write.transaction.connection();
  if (const std::optional<int64_t> known =
          ledger::find_run(connection, registration.name, registration.job_id)) {
    write.runs.load(write.transaction, *known);  // refuses one that is being deleted
    take_over(write, *known, process);
    return register_again(write, write.runs.load(write.transaction, *known), registration);
  }
  // NAME/JOB_ID is what people, metrics and alerts call a run: its last slash must part the two. A
  // run that is on record otherwise goes on.
  require(registration.job_id.find('/') == std::string::npos, "job_id", registration.job_id,
          "a text without \"/\"");
  from_request<RunRegistration>(to_json(registration));  // throws JsonError
  const double time = write.runs.now();
  const std::string policy = write.runs.default_policy();
  int64_t id =
      ledger::insert_run(connection, {0, registration.name, registration.job_id,
                                      to_json(registration), policy, "live", time, std::nullopt});
  for (const InjectedFault& fault : registration.faults) {
    ledger::insert_fault(connection, id, fault);
  }
  ledger::insert_plan(connection, id, PrecisionPlan::parse(registration.base_plan).version,
                      registration.base_plan, time);
  CachedRun& run = write.runs.load(write.transaction, id);
  take_over(write, id, process);
  write.transaction.on_commit(
      [&runs = write.runs, id, label = run.label] { runs.metrics().start_run(id, label, {}); });
  write.runs.record_event(write.transaction, run, registered_event(registration));
  write.runs.stream(write.transaction, id, "run",
                    fmt::format(R"({{"run":"{}","state":"live"}})", run_name(id)));
  return registered_as(id, run.state, run.policy);
}

}  // namespace gnomon
