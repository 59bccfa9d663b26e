// How a run ends, by its trainer's word or an operator's, and how one goes for good.
#include <fmt/format.h>

#include <limits>

#include "controller/refusal.h"
#include "controller/supervisor/run_cache.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_deletion.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// Within which a trainer that has spoken, or has had no daemon to speak to, is not gone: it polls
// for directives, paused or in a long step too.
constexpr double kTrainerSilentSeconds = 120;
constexpr int64_t kRowsAtOnce = 1000;
constexpr const char* kReason = "the run is being deleted";

}  // namespace

ReportAck RunCache::finish(LedgerTransaction& transaction, int64_t id,
                           const RunFinished& finished) {
  Run& run = load(transaction, id);
  require_step_of(run.registration, finished.step, "step", 0);
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
  forget_when_ended(transaction, id);
  stream(transaction, id, "run",
         fmt::format(R"({{"run":"{}","state":"{}"}})", run_name(id), finished.outcome));
  transaction.on_commit([this, id, at = steady_now() + options_.series_keep_seconds] {
    verdicts_.forget(id);
    metrics_.update_run(id,
                        [](RunNumbers& numbers) { numbers.verdict = decide::VerdictKind::kEnded; });
    metrics_.drop_run_at(id, at);
  });
  return ack(transaction, run, 1, 0);
}

void RunCache::heard_from(int64_t run) {
  const std::lock_guard lock(heard_mutex_);
  heard_at_[run] = steady_now();
}

// Since the run's trainer has said anything, as far as this process knows: it does not outlive it.
double RunCache::silent_for(int64_t run) const {
  const std::lock_guard lock(heard_mutex_);
  const auto found = heard_at_.find(run);
  return steady_now() - (found == heard_at_.end() ? begun_at_ : found->second);
}

void RunCache::end_run(LedgerTransaction& transaction, int64_t id, const EndRequest& request) {
  check_asker(request.owner, request.reason);
  Connection& connection = transaction.connection();
  const std::optional<RunRow> row = ledger::load_run(connection, id);
  // One that is set aside ends without the core, so that it can be deleted.
  const bool alone = row && row->state == "live" && !readable(transaction, id);
  if (!alone) load(transaction, id);
  if (row->state == "failed") return;
  if (row->state == "live") refuse_while_trainer_speaks(id, row->label());
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  const auto newest = ledger::newest_step(connection, id).value_or(std::pair<int64_t, int64_t>());
  const RunFinished failed{"failed", newest.second, unknown, unknown, now()};
  if (alone) {
    ledger::finish_run(connection, id, failed, now());
    stream(transaction, id, "run", fmt::format(R"({{"run":"{}","state":"failed"}})", run_name(id)));
  } else {
    finish(transaction, id, failed);
  }
  ledger::insert_audit(connection, now(), id, "run_ended",
                       fmt::format("{}: {}", request.owner, request.reason));
}

void RunCache::refuse_while_trainer_speaks(int64_t run, const std::string& label) const {
  const double silent = silent_for(run);
  if (silent >= kTrainerSilentSeconds) return;
  throw Refusal(
      409, "The trainer is there",
      fmt::format("the trainer of {} has spoken, or this gnomond has begun, {:.0f} s ago", label,
                  silent),
      fmt::format("`gnomon override {} stop`, which ends it with a checkpoint; or the same request "
                  "after {:.0f} s of silence",
                  label, kTrainerSilentSeconds));
}

bool RunCache::delete_run(LedgerTransaction& transaction, int64_t id) {
  Connection& connection = transaction.connection();
  const std::optional<RunRow> row = ledger::load_run(connection, id);
  if (!row) throw unknown_run(run_name(id));
  const std::string label = row->label();
  if (row->state == "live") {
    throw Refusal(409, "The run is live", fmt::format("{} has not ended", label),
                  "a run that is completed, stopped or failed; one whose trainer is gone for good "
                  "is ended by `gnomon runs end`");
  }
  if (row->state != ledger::kDeleting) {
    ledger::begin_deletion(connection, id, kReason, now());
    runs_.erase(id);
    transaction.on_commit([this, id] {
      deadlines_.set(id, std::numeric_limits<double>::infinity());
      set_aside_.forget(id);
      metrics_.drop_run_at(id, steady_now());
      verdicts_.forget(id);
      bells_.work.forget_run(id);
      bells_.directives.of(id).ring();
      const std::lock_guard lock(heard_mutex_);
      heard_at_.erase(id);
    });
    return false;
  }
  if (ledger::delete_some_of_run(connection, id, kRowsAtOnce) > 0) return false;
  ledger::end_deletion(connection, id);
  ledger::insert_audit(connection, now(), id, "run_deleted", label);
  stream(transaction, id, "run_deleted",
         fmt::format(R"({{"run":"{}","state":"deleted"}})", run_name(id)));
  return true;
}

}  // namespace gnomon
