#include "controller/supervisor/attempts.h"

#include <fmt/format.h>

#include "controller/auth/http_error.h"
#include "controller/metrics/layers.h"
#include "controller/metrics/totals.h"
#include "controller/supervisor/checks.h"
#include "protocol/json.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// Bits are compared by fingerprint, so another one would change what was concluded.
std::string attempt_difference(const AttemptRow& known, const AttemptRow& repeated) {
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

// The run had stopped or failed and goes on.
void revive(WriteContext write, CachedRun& run) {
  ledger::revive_run(write.transaction.connection(), run.id);
  run.life = "live";
  // Its series may have been dropped: they begin anew with what is on record.
  write.runs.save(write.transaction, run);
  RunNumbers numbers = load_run_numbers(write.transaction.connection(), run.id);
  add_state(numbers, run.state, run.policy);
  write.transaction.on_commit(
      [&runs = write.runs, id = run.id, label = run.label, numbers = std::move(numbers)] {
        runs.metrics().start_run(id, label, numbers);
      });
  write.runs.stream(write.transaction, run.id, "run",
                    fmt::format(R"({{"run":"{}","state":"live"}})", run_name(run.id)));
}

}  // namespace

ReportAck start_attempt(WriteContext write, int64_t id, const AttemptStart& attempt) {
  CachedRun& run = write.runs.load(write.transaction, id);
  Connection& connection = write.transaction.connection();
  require_step_of(run.registration, attempt.base_step, "base_step", 0);
  AttemptRow fresh{
      id, attempt.attempt, attempt.base_step, attempt.cause, attempt.plan_version, attempt.time,
      {}, attempt.host};
  if (attempt.fingerprint) fresh.fingerprint = to_json(*attempt.fingerprint);
  if (std::optional<AttemptRow> known = ledger::find_attempt(connection, id, attempt.attempt)) {
    if (std::string detail = attempt_difference(*known, fresh); !detail.empty()) {
      throw HttpError(
          409, "Attempt already started otherwise", detail,
          fmt::format("attempt {} for a new one", ledger::newest_attempt(connection, id) + 1),
          AuditNote{id, "conflicting_attempt", detail});
    }
    return report_ack(write.transaction, run, 0, 1);
  }
  int64_t newest = ledger::newest_attempt(connection, id);
  if (attempt.attempt != newest + 1) {
    throw HttpError(409, "Attempts are numbered without gaps",
                    fmt::format("attempt {} follows attempt {}", attempt.attempt, newest),
                    fmt::format("attempt {}", newest + 1));
  }
  if (run.life == "completed") {
    throw HttpError(409, "The run is completed",
                    fmt::format("{} was reported as completed", run.label),
                    "another job_id for a new run");
  }
  check_plan(connection, run, attempt.plan_version);
  if (run.life != "live") revive(write, run);
  ledger::insert(connection, fresh);
  write.runs.set_terms_on_commit(write.transaction, run);
  write.runs.record_event(write.transaction, run,
                          decide::AttemptStarted{attempt.attempt, attempt.base_step, attempt.cause,
                                                 attempt.plan_version, attempt.host});
  show_layers(write, run, attempt.plan_version);
  write.transaction.on_commit(
      [&runs = write.runs, id, number = attempt.attempt, standing = load_standing(connection, id)] {
        runs.metrics().update_run(id, [&](RunNumbers& numbers) {
          numbers.attempt = number;
          standing(numbers);
        });
      });
  return report_ack(write.transaction, run, 1, 0);
}

void continue_attempt(WriteContext write, CachedRun& run, const StepReport& step) {
  const std::string before = run.life;
  revive(write, run);
  write.runs.set_terms_on_commit(write.transaction, run);
  write.runs.record_event(
      write.transaction, run,
      decide::AttemptStarted{step.attempt, step.step - 1, decide::kContinued, step.plan_version});
  ledger::insert_audit(write.transaction.connection(), write.runs.now(), run.id, "run_goes_on",
                       fmt::format("it was {}, and its trainer reports step {} of attempt {}",
                                   before, step.step, step.attempt));
}

void show_layers(WriteContext write, CachedRun& run, int64_t plan_version) {
  if (run.newest_plan == plan_version) {
    return;
  }
  run.newest_plan = plan_version;
  std::optional<std::string> toml =
      ledger::find_plan(write.transaction.connection(), run.id, plan_version);
  if (!toml) {
    return;
  }
  auto shares = layer_shares(*toml, run.registration.sites, run.registration.layers);
  write.transaction.on_commit([&runs = write.runs, id = run.id, shares = std::move(shares)] {
    runs.metrics().update_run(id, [&](RunNumbers& numbers) { record_layers(numbers, shares); });
  });
}

}  // namespace gnomon
