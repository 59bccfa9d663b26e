#include "controller/supervisor/ending.h"

#include <fmt/format.h>

#include <limits>

#include "controller/auth/http_error.h"
#include "controller/supervisor/checks.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_deletion.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// Within which a trainer that has spoken, or has had no daemon to speak to, is not gone: it polls
// for directives, paused or in a long step too.
constexpr double kTrainerSilentSeconds = 120;
constexpr int64_t kDeletedAtOnce = 1000;
constexpr const char* kReason = "the run is being deleted";

// Throws HttpError (409).
void refuse_while_trainer_speaks(const RunCache& runs, int64_t run, const std::string& label) {
  const double silent = runs.silent_for(run);
  if (silent >= kTrainerSilentSeconds) return;
  throw HttpError(
      409, "The trainer is there",
      fmt::format("the trainer of {} has spoken, or this gnomond has begun, {:.0f} s ago", label,
                  silent),
      fmt::format("`gnomon override {} stop --reason WHY`, which ends it with a checkpoint; or the "
                  "same request "
                  "after {:.0f} s of silence",
                  label, kTrainerSilentSeconds));
}

}  // namespace

ReportAck finish_run(WriteContext write, int64_t id, const RunFinished& finished) {
  CachedRun& run = write.runs.load(write.transaction, id);
  require_step_of(run.registration, finished.step, "step", 0);
  if (run.life == finished.outcome) {
    return report_ack(write.transaction, run, 0, 1);
  }
  if (run.life != "live") {
    throw HttpError(409, "The run has ended otherwise",
                    fmt::format("{} is {} on record, now it is said to be {}", run.label, run.life,
                                finished.outcome),
                    run.life);
  }
  ledger::finish_run(write.transaction.connection(), id, finished, write.runs.now());
  run.life = finished.outcome;
  write.runs.record_event(write.transaction, run,
                          decide::RunEnded{finished.outcome, finished.step});
  write.runs.forget_when_ended(write.transaction, id);
  write.runs.stream(write.transaction, id, "run",
                    fmt::format(R"({{"run":"{}","state":"{}"}})", run_name(id), finished.outcome));
  write.transaction.on_commit(
      [&runs = write.runs, id,
       at = write.runs.steady_now() + write.runs.options().series_keep_seconds] {
        runs.verdicts().forget(id);
        runs.metrics().update_run(
            id, [](RunNumbers& numbers) { numbers.verdict = decide::VerdictKind::kEnded; });
        runs.metrics().drop_run_at(id, at);
      });
  return report_ack(write.transaction, run, 1, 0);
}

void end_run(WriteContext write, int64_t id, const EndRequest& request) {
  check_asker(request.owner, request.reason);
  Connection& connection = write.transaction.connection();
  const std::optional<RunRow> row = ledger::load_run(connection, id);
  // One that is set aside ends without the core, so that it can be deleted.
  const bool alone = row && row->state == "live" && !write.runs.readable(write.transaction, id);
  if (!alone) write.runs.load(write.transaction, id);
  if (row->state == "failed") return;
  if (row->state == "live") refuse_while_trainer_speaks(write.runs, id, row->label());
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  const auto newest = ledger::newest_step(connection, id).value_or(std::pair<int64_t, int64_t>());
  const RunFinished failed{"failed", newest.second, unknown, unknown, write.runs.now()};
  if (alone) {
    ledger::finish_run(connection, id, failed, write.runs.now());
    write.runs.stream(write.transaction, id, "run",
                      fmt::format(R"({{"run":"{}","state":"failed"}})", run_name(id)));
  } else {
    finish_run(write, id, failed);
  }
  ledger::insert_audit(connection, write.runs.now(), id, "run_ended",
                       fmt::format("{}: {}", request.owner, request.reason));
}

bool delete_run(WriteContext write, int64_t id) {
  Connection& connection = write.transaction.connection();
  const std::optional<RunRow> row = ledger::load_run(connection, id);
  if (!row) throw unknown_run(run_name(id));
  const std::string label = row->label();
  if (row->state == "live") {
    throw HttpError(
        409, "The run is live", fmt::format("{} has not ended", label),
        "a run that is completed, stopped or failed; one whose trainer is gone for good "
        "is ended by `gnomon runs end`");
  }
  if (row->state != ledger::kDeleting) {
    ledger::begin_deletion(connection, id, kReason, write.runs.now());
    write.runs.forget(write.transaction, id);
    return false;
  }
  if (ledger::delete_some_of_run(connection, id, kDeletedAtOnce) > 0) return false;
  ledger::end_deletion(connection, id);
  ledger::insert_audit(connection, write.runs.now(), id, "run_deleted", label);
  write.runs.stream(write.transaction, id, "run_deleted",
                    fmt::format(R"({{"run":"{}","state":"deleted"}})", run_name(id)));
  return true;
}

}  // namespace gnomon
