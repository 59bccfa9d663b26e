#include "controller/leases/leases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "controller/auth/http_error.h"
#include "controller/supervisor/effects.h"
#include "controller/supervisor/notices.h"
#include "controller/supervisor/replay_results.h"
#include "controller/supervisor/replays.h"
#include "protocol/json.h"
#include "storage/ledger_results.h"
#include "storage/ledger_windows.h"

namespace gnomon {
namespace {

constexpr const char* kLeftOut = "the answer leaves out";
constexpr size_t kLookAtOnce = 16;   // replays of the queue
constexpr int64_t kNobodysRun = -1;  // of a trainer whose run has a name that no run has

void check_steps(const ReplayResult& result, const WindowRow& window) {
  int64_t last = window.start_step;
  for (const ReplayStep& step : result.steps) {
    require(step.step == last + 1 && step.step <= window.start_step + window.steps,
            fmt::format("step {} follows step {} in the result", step.step, last),
            fmt::format("the steps {} to {} in order, or the first of them", window.start_step + 1,
                        window.start_step + window.steps));
    last = step.step;
  }
}

// A loss that was asked for, and that the answer leaves out; empty where none is. A replay that
// turned non-finite has no end.
std::string left_out(const ReplayRow& replay, const WindowRow& window, const ReplayResult& result) {
  if (replay.arm == "scores" || window.kind == "incident") return {};
  if (replay.evaluate_endpoints && !window.end_uri.empty() && !result.run_end_loss_bf16)
    return "run_end_loss_bf16";
  const bool ends = std::ssize(result.steps) == window.steps && window.steps > 0 &&
                    std::isfinite(result.steps.back().loss);
  return ends && !result.replay_end_loss_bf16 ? "replay_end_loss_bf16" : "";
}

// They were recorded together: one without the other is damage.
WindowRow window_of(Connection& connection, const ReplayRow& replay) {
  std::optional<WindowRow> window = ledger::find_window(connection, replay.run, replay.window);
  if (!window) {
    throw Error(fmt::format("window {} of {}, of replay {}, is not in the ledger", replay.window,
                            run_name(replay.run), replay.replay));
  }
  return *std::move(window);
}

ReplayRow replay_of(Connection& connection, const LeaseRow& lease) {
  std::optional<ReplayRow> replay = ledger::find_replay(connection, lease.run, lease.replay);
  if (!replay) {
    throw Error(fmt::format("replay {} of {}, of lease {}, is not in the ledger", lease.replay,
                            run_name(lease.run), lease.id));
  }
  return *std::move(replay);
}

[[noreturn]] void refuse_stale(const LeaseRow& lease, int64_t token) {
  std::string detail =
      token == lease.token
          ? fmt::format("lease {} of {} is {}", lease.id, lease.verifier, lease.state)
          : fmt::format("token {} is not the token of lease {} of {}", token, lease.id,
                        lease.verifier);
  throw HttpError(409, "The lease is not held any more", detail,
                  "stop this replay and ask for another lease",
                  AuditNote{lease.run, "stale_lease", detail});
}

// The lease was granted before its run stopped believing the verifier.
[[noreturn]] void refuse_quarantined(const LeaseRow& lease) {
  const std::string detail =
      fmt::format("lease {}: {} is in quarantine for this run", lease.id, lease.verifier);
  throw HttpError(409, "The lease is not held any more", detail,
                  "stop this replay and ask for another lease",
                  AuditNote{lease.run, "stale_lease", detail});
}

// Refuses a repeat whose values differ from those of the first time.
[[noreturn]] void refuse_conflict(const LeaseRow& lease, const std::string& difference) {
  const std::string detail = fmt::format("lease {} of {} has {} with other values: {}", lease.id,
                                         lease.verifier, lease.state, difference);
  throw HttpError(409, "Already handed in with other values", detail,
                  "the values of the first time, or another lease",
                  AuditNote{lease.run, "conflicting_result", detail});
}

void check(const LeaseRequest& request) {
  require(is_trainer(request.verifier) == request.on_trainer,
          fmt::format("verifier is \"{}\" and on_trainer {}", request.verifier, request.on_trainer),
          fmt::format("a name that begins with \"{}\" for a trainer, and for nobody else",
                      kTrainerPrefix));
  require(request.labels.size() <= kLabelsMax, fmt::format("{} labels", request.labels.size()),
          fmt::format("at most {}", kLabelsMax));
  for (const auto& [key, value] : request.labels) {
    const std::string accepted = label_error(key, value);
    require(accepted.empty(), fmt::format("the label \"{}\" is \"{}\"", key, value), accepted);
  }
}

}  // namespace

Leases::Leases(RunCache& runs, Metrics& metrics, ReplayQueue& queue)
    : runs_(runs), metrics_(metrics), queue_(queue), held_(runs, metrics, queue, registry_) {
  runs_.on_return(
      [this](LedgerTransaction& transaction, int64_t run) { restore_runs(transaction, {run}); });
}

void Leases::restore(LedgerTransaction& transaction) {
  Connection& connection = transaction.connection();
  std::set<int64_t> runs;
  for (const LeaseRow& lease : ledger::live_leases(connection)) runs.insert(lease.run);
  for (const ReplayRow& replay : ledger::queued_replays(connection)) runs.insert(replay.run);
  // Its verifiers are refused (503) until the run is mended.
  std::erase_if(runs, [&](int64_t run) { return !runs_.readable(transaction, run); });
  restore_runs(transaction, runs);
  // Verifiers of lately may come back: a replay that one should leave to others waits for them.
  Query lately = connection.query(
      "SELECT DISTINCT verifier FROM (SELECT verifier FROM leases ORDER BY id DESC LIMIT 100)");
  while (lately.next()) {
    if (!is_trainer(lately.text(0))) registry_.record_contact(lately.text(0), runs_.steady_now());
  }
  Query ended =
      connection.query("SELECT state, count(*) FROM leases WHERE state <> 'leased' GROUP BY state");
  while (ended.next()) {
    metrics_.update([&](DaemonNumbers& n) {
      n.leases[ended.text(0)] += static_cast<double>(ended.integer(1));
    });
  }
}

// The runs are in memory: one that is read for the first time may end or order replays.
void Leases::restore_runs(LedgerTransaction& transaction, const std::set<int64_t>& runs) {
  Connection& connection = transaction.connection();
  const double now = runs_.steady_now();
  for (const LeaseRow& lease : ledger::live_leases(connection)) {
    if (!runs.contains(lease.run)) continue;
    const bool on_verifier = !is_trainer(lease.verifier);
    const double ttl = runs_.load(transaction, lease.run).policy.verifier.lease_ttl_seconds;
    transaction.on_commit([this, lease, now, ttl, on_verifier] {
      held_.add(lease.id, {lease.run, now, ttl, lease.token, lease.verifier, on_verifier});
      if (on_verifier) queue_.lease_began(lease.run);
      if (!on_verifier) runs_.verdicts().trainer_busy(lease.run, runs_.now() + ttl);
    });
  }
  for (const int64_t run : runs) restore_turn(transaction, run);
  for (const ReplayRow& replay : ledger::queued_replays(connection)) {
    if (!runs.contains(replay.run)) continue;
    transaction.on_commit([this, entry = queued(connection, replay)] { queue_.add(entry); });
  }
}

void Leases::restore_turn(LedgerTransaction& transaction, int64_t run) {
  int64_t cases = 0;
  for (const auto& [verifier, priority] :
       ledger::newest_lease_priorities(transaction.connection(), run, kLookAtOnce)) {
    if (is_trainer(verifier)) continue;
    if (!ReplayQueue::of_case(priority)) break;
    ++cases;
  }
  transaction.on_commit([this, run, cases] { queue_.restore_turn(run, cases); });
}

// The entry of the queue, with the verifiers that have refused it.
QueuedReplay Leases::queued(Connection& connection, const ReplayRow& replay) const {
  QueuedReplay entry = queued_replay(replay);
  if (replay.token > 0)
    entry.refused_by = ledger::unsupported_leases(connection, replay.run, replay.replay).verifiers;
  return entry;
}

ReplayQueue::Worker Leases::register_request(const LeaseRequest& request, double wait_seconds) {
  check(request);
  ReplayQueue::Worker worker{request.verifier, request.labels};
  worker.can = request.can;
  worker.labels.emplace(kBackendLabel, request.fingerprint.backend);
  worker.labels.emplace(kDeviceLabel, request.fingerprint.device);
  const double now = runs_.steady_now();
  if (request.on_trainer) {
    worker.trainer_of = run_number(request.run).value_or(kNobodysRun);
    queue_.record_trainer(worker.trainer_of, worker.can, now + wait_seconds + kSilentSeconds);
  } else {
    registry_.record_request(worker.name, {worker.labels, worker.can}, now + wait_seconds, now);
  }
  return worker;
}

bool Leases::has_work_for(const ReplayQueue::Worker& worker) const {
  return !queue_.candidates(worker, 1, runs_.steady_now()).empty();
}

std::optional<Lease> Leases::grant(LedgerTransaction& transaction, ReplayQueue::Worker& worker) {
  const std::optional<ReplayRow> replay = next_for(transaction, worker);
  if (!replay) return std::nullopt;
  Connection& connection = transaction.connection();
  const double ttl = runs_.load(transaction, replay->run).policy.verifier.lease_ttl_seconds;
  const bool on_verifier = worker.trainer_of == 0;
  const QueuedReplay taken = queued(connection, *replay);
  remove_from_queue(transaction, taken, on_verifier);
  WindowRow window = window_of(connection, *replay);
  double now = runs_.now();
  int64_t token = replay->token + 1;
  ledger::set_replay_state(connection, replay->run, replay->replay, "leased", token, {}, now);
  int64_t id =
      ledger::insert_lease(connection, replay->run, replay->replay, token, worker.name, now);
  transaction.on_commit(
      [this, id, run = replay->run, ttl, token, verifier = worker.name, on_verifier] {
        held_.add(id, {run, runs_.steady_now(), ttl, token, verifier, on_verifier});
        if (!on_verifier) runs_.verdicts().trainer_busy(run, runs_.now() + ttl);
      });
  return Lease{
      id, token, ttl,
      ReplayTask{run_name(replay->run), replay->replay, replay->window, window.attempt, replay->arm,
                 replay->plan, replay->purpose, window.start_uri, window.start_step, window.steps,
                 window.end_uri, replay->evaluate_endpoints, replay->nudge}};
}

// What it finds to be nothing for this worker it notes in the worker, so that nobody looks again.
std::optional<ReplayRow> Leases::next_for(LedgerTransaction& transaction,
                                          ReplayQueue::Worker& worker) {
  Connection& connection = transaction.connection();
  while (true) {
    const std::vector<QueuedReplay> turns =
        queue_.candidates(worker, kLookAtOnce, runs_.steady_now());
    if (turns.empty()) return std::nullopt;
    for (const QueuedReplay& turn : turns) {
      std::optional<ReplayRow> replay = ledger::find_replay(connection, turn.run, turn.replay);
      // Another write of this group may have taken or cancelled it.
      const bool queued = replay && replay->state == "queued" && replay->token == turn.token &&
                          runs_.readable(transaction, turn.run) &&
                          ledger::find_window(connection, turn.run, replay->window);
      // Nor may one of this group have put the worker into quarantine.
      const bool believed = !ledger::is_quarantined(connection, turn.run, worker.name);
      if (queued && believed && !better_left_to_others(connection, *replay, worker)) return replay;
      worker.declined.insert(ReplayQueue::key(turn));
    }
  }
}

void Leases::remove_from_queue(LedgerTransaction& transaction, const QueuedReplay& entry,
                               bool on_verifier) {
  ReplayQueue& queue = queue_;
  transaction.on_rollback([&queue, entry, on_verifier] {
    if (on_verifier) queue.lease_undone(entry.run);
    queue.add(entry);
  });
  queue.remove(entry.run, entry.replay);
  if (on_verifier) queue.lease_began(entry.run, ReplayQueue::of_case(entry.priority));
}

// True when a verifier speaks that the run believes, that has what it requires and is as `may`
// says.
bool Leases::others_speak(const ReplayRow& replay,
                          const std::function<bool(const std::string& name)>& may) const {
  return registry_.any(
      runs_.steady_now(), [&](const std::string& name, const VerifierRegistry::Entry& entry) {
        return may(name) && (!entry.profile || entry.profile->can.can_replay(replay.arm)) &&
               queue_.suits(replay.run, name, entry.known());
      });
}

// Those that have failed the replay or refused it.
std::set<std::string> Leases::unfit_for(Connection& connection, const ReplayRow& replay) const {
  std::set<std::string> unfit = queued(connection, replay).refused_by;
  if (replay.token > 0)
    unfit.merge(ledger::verifiers_that_failed(connection, replay.run, replay.replay));
  return unfit;
}

// A trainer takes what only it can do, and the rest while there is nobody else for it. A verifier
// leaves what it has failed to the trainer, too.
bool Leases::better_left_to_others(Connection& connection, const ReplayRow& replay,
                                   const ReplayQueue::Worker& worker) const {
  if (replay.on_trainer) return false;
  const std::set<std::string> unfit = unfit_for(connection, replay);
  if (worker.trainer_of != 0)
    return others_speak(replay, [&](const std::string& name) { return !unfit.contains(name); });
  const bool has_failed = unfit.contains(worker.name);
  if (!has_failed && !decide::avoids(replay.avoid, worker.name)) return false;
  const bool trainer = has_failed && std::ranges::none_of(unfit, is_trainer) &&
                       queue_.trainer_takes(replay.run, replay.arm, runs_.steady_now());
  return trainer || others_fit(replay, unfit);
}

// True when a verifier speaks that is none of these, nor avoided.
bool Leases::others_fit(const ReplayRow& replay, const std::set<std::string>& unfit) const {
  return others_speak(replay, [&](const std::string& name) {
    return !decide::avoids(replay.avoid, name) && !unfit.contains(name);
  });
}

LeaseRow Leases::live_row(LedgerTransaction& transaction, int64_t lease, int64_t token) {
  std::optional<LeaseRow> row = ledger::find_lease(transaction.connection(), lease);
  if (!row) {
    throw HttpError(404, "Unknown lease", fmt::format("there is no lease {}", lease),
                    "a lease from POST /v1/leases");
  }
  if (row->state != "leased" || row->token != token) {
    refuse_stale(*row, token);
  }
  if (!is_trainer(row->verifier) &&
      ledger::is_quarantined(transaction.connection(), row->run, row->verifier)) {
    refuse_quarantined(*row);
  }
  return *row;
}

void Leases::heartbeat(LedgerTransaction& transaction, int64_t lease, const LeaseHeartbeat& beat) {
  LeaseRow row = live_row(transaction, lease, beat.token);
  ledger::touch_lease(transaction.connection(), lease, beat.token, beat.steps_done, runs_.now());
  if (!is_trainer(row.verifier)) registry_.record_contact(row.verifier, runs_.steady_now());
  // At once, not after COMMIT: the verifier lives, whatever becomes of the row.
  const double ttl = runs_.load(transaction, row.run).policy.verifier.lease_ttl_seconds;
  held_.set_ttl(lease, ttl);
  if (is_trainer(row.verifier)) runs_.verdicts().trainer_busy(row.run, runs_.now() + ttl);
}

void Leases::complete(LedgerTransaction& transaction, int64_t lease, const ReplayResult& result) {
  Connection& connection = transaction.connection();
  std::optional<LeaseRow> known = ledger::find_lease(connection, lease);
  if (known && known->state == "completed" && known->token == result.token) {
    return check_repeat(connection, *known, result);  // the first answer was lost
  }
  if (known && known->state == "failed" && known->token == result.token &&
      ledger::lease_reason(connection, lease).starts_with(kLeftOut))
    return;
  LeaseRow row = live_row(transaction, lease, result.token);
  const ReplayRow replay = replay_of(connection, row);
  const WindowRow window = window_of(connection, replay);
  check_steps(result, window);
  if (const std::string missing = left_out(replay, window, result); !missing.empty()) {
    std::set<std::string> unfit = unfit_for(connection, replay);
    unfit.insert(row.verifier);
    if (!is_trainer(row.verifier) && others_fit(replay, unfit)) {
      const std::string reason = fmt::format("{} {}", kLeftOut, missing);
      ledger::end_lease(connection, lease, row.token, "failed", reason);
      end_on_commit(transaction, lease, "failed");
      return requeue_or_give_up(transaction, row, reason, true);
    }
  }
  ledger::end_lease(connection, lease, row.token, "completed", {});
  ledger::set_replay_state(connection, row.run, row.replay, "done", row.token, {}, runs_.now());
  end_on_commit(transaction, lease, "completed");
  replay_finished({runs_, transaction}, replay, row.verifier, result);
}

void Leases::fail(LedgerTransaction& transaction, int64_t lease, const LeaseFailure& failure) {
  Connection& connection = transaction.connection();
  std::optional<LeaseRow> known = ledger::find_lease(connection, lease);
  const LeaseState state = failure.unsupported ? LeaseState("unsupported") : "failed";
  if (known && known->state == state && known->token == failure.token) {
    const std::string before = ledger::lease_reason(connection, lease);
    if (before != failure.reason) {
      refuse_conflict(*known,
                      fmt::format("reason was \"{}\" and now is \"{}\"", before, failure.reason));
    }
    return;
  }
  LeaseRow row = live_row(transaction, lease, failure.token);
  ledger::end_lease(connection, lease, row.token, state, failure.reason);
  end_on_commit(transaction, lease, state);
  // Nobody else is asked for what only the trainer can do.
  const bool others = failure.unsupported && !replay_of(connection, row).on_trainer;
  requeue_or_give_up(transaction, row, failure.reason,
                     failure.unsupported ? others : failure.retryable);
}

void Leases::check_repeat(Connection& connection, const LeaseRow& lease,
                          const ReplayResult& result) const {
  std::optional<ledger::RecordedResult> known =
      ledger::find_result(connection, lease.run, lease.replay);
  // The retention may have taken it.
  if (!known || known->result.token != result.token) return;
  known->result.fingerprint = from_json<Fingerprint>(known->fingerprint);
  const std::string conflict = difference(known->result, result);
  if (!conflict.empty()) refuse_conflict(lease, conflict);
}

void Leases::expire(LedgerTransaction& transaction, int64_t lease) {
  if (!held_.is_overdue(lease)) return;  // ended, or the verifier sent something meanwhile
  std::optional<LeaseRow> row = ledger::find_lease(transaction.connection(), lease);
  if (!row || row->state != "leased" || !runs_.readable(transaction, row->run)) {
    held_.forget(lease);
    return;
  }
  const bool believed = is_trainer(row->verifier) ||
                        !ledger::is_quarantined(transaction.connection(), row->run, row->verifier);
  std::string reason =
      fmt::format("{} {}", row->verifier,
                  believed ? "was not heard of for the lease's time" : "was quarantined meanwhile");
  ledger::end_lease(transaction.connection(), lease, row->token, "expired", reason);
  end_on_commit(transaction, lease, "expired");
  requeue_or_give_up(transaction, *row, reason, true);
}

void Leases::end_leases_of(LedgerTransaction& transaction, int64_t run) {
  for (const LeaseRow& lease : ledger::live_leases(transaction.connection())) {
    if (lease.run != run) continue;
    ledger::end_lease(transaction.connection(), lease.id, lease.token, "expired",
                      "the run is being deleted");
    end_on_commit(transaction, lease.id, "expired");
  }
}

void Leases::requeue_or_give_up(LedgerTransaction& transaction, const LeaseRow& lease,
                                const std::string& reason, bool retryable) {
  Connection& connection = transaction.connection();
  ReplayRow replay = replay_of(connection, lease);
  const WindowRow window = window_of(connection, replay);
  double now = runs_.now();
  if (window.state != "open") {
    ledger::set_replay_state(connection, lease.run, lease.replay, "cancelled", lease.token, reason,
                             now);
    return;
  }
  // Each lease is a try, but for those of verifiers that cannot do such a replay.
  const int64_t tries =
      lease.token - ledger::unsupported_leases(connection, lease.run, lease.replay).leases;
  if (retryable && tries < runs_.load(transaction, lease.run).policy.verifier.attempts_max) {
    ledger::set_replay_state(connection, lease.run, lease.replay, "queued", lease.token, reason,
                             now);
    replay.token = lease.token;
    transaction.on_commit(
        [&queue = queue_, entry = queued(connection, replay)] { queue.add(entry); });
  } else {
    ledger::set_replay_state(connection, lease.run, lease.replay, "failed", lease.token, reason,
                             now);
    replay_failed({runs_, transaction}, replay, reason);
  }
}

void Leases::end_on_commit(LedgerTransaction& transaction, int64_t lease,
                           const std::string& outcome) {
  transaction.on_commit([this, lease, outcome] { held_.end(lease, outcome); });
}

void Leases::watch_unschedulable(Ledger& ledger) {
  UnschedulableReplays::Look look = unschedulable_.look(queue_, registry_, runs_.steady_now());
  metrics_.update([&](DaemonNumbers& n) { n.replays_unschedulable = look.counts; });
  for (UnschedulableReplays::Notice& notice : look.notices) {
    const int64_t run = notice.run;
    const bool accepted = ledger.post(
        [this, notice = std::move(notice)](LedgerTransaction& transaction) {
          add_own_notice({runs_, transaction}, notice.run, kNoVerifierFits, notice.text);
        },
        [this, run](std::exception_ptr error) {
          if (error) unschedulable_.retry_notice(run);
        });
    if (!accepted) unschedulable_.retry_notice(run);
  }
  for (QueuedReplay& entry : queue_.for_trainers()) {
    if (!queue_.trainer_can(entry.run, entry.arm)) look.to_fail.push_back(std::move(entry));
  }
  for (QueuedReplay& entry : look.to_fail) {
    const bool accepted =
        ledger.post([this, entry = std::move(entry)](
                        LedgerTransaction& transaction) { give_up(transaction, entry); },
                    [](std::exception_ptr) {});
    if (!accepted) break;  // the next look tries again
  }
}

// Those who speak have said that they cannot do it.
void Leases::give_up(LedgerTransaction& transaction, const QueuedReplay& entry) {
  Connection& connection = transaction.connection();
  const std::optional<ReplayRow> replay = ledger::find_replay(connection, entry.run, entry.replay);
  if (!replay || replay->state != "queued" || replay->token != entry.token ||
      !runs_.readable(transaction, entry.run))
    return;
  const std::string reason = replay->fail_reason.value_or("").empty()
                                 ? fmt::format("{} the arm {}", kNobodyCan, replay->arm)
                                 : fmt::format("{} it: {}", kNobodyCan, *replay->fail_reason);
  ledger::set_replay_state(connection, entry.run, entry.replay, "failed", entry.token, reason,
                           runs_.now());
  transaction.on_commit([&queue = queue_, entry] { queue.remove(entry.run, entry.replay); });
  replay_failed({runs_, transaction}, *replay, reason);
}

}  // namespace gnomon
