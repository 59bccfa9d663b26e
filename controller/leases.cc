#include "controller/leases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/refusal.h"
#include "protocol/json.h"
#include "storage/ledger_windows.h"

namespace gnomon {
namespace {

constexpr int kQueueLook = 64;        // replays looked at for one verifier
constexpr double kForgetSeconds = 1;  // thousands may ask at once: not each looks through all
constexpr double kSeenSeconds = 60;   // beyond a long poll's time a silent verifier does not count

void require(bool condition, const std::string& detail, const std::string& accepted) {
  if (!condition) throw Refusal(400, "Value not accepted", detail, accepted);
}

// A result that the ledger could not hold would be sent again and again.
void check_durations(const ReplayResult& result) {
  for (double seconds : {result.replay_seconds, result.eval_seconds}) {
    require(std::isfinite(seconds) && seconds >= 0, fmt::format("a duration is {}", seconds),
            "a duration in seconds");
  }
}

void check_steps(const ReplayResult& result, const ledger::WindowRow& window) {
  int64_t last = window.start_step;
  for (const ReplayStep& step : result.steps) {
    require(step.step == last + 1 && step.step <= window.start_step + window.steps,
            fmt::format("step {} follows step {} in the result", step.step, last),
            fmt::format("the steps {} to {} in order, or the first of them", window.start_step + 1,
                        window.start_step + window.steps));
    last = step.step;
  }
}

[[noreturn]] void refuse_stale(const ledger::LeaseRow& lease, int64_t token) {
  std::string detail =
      token == lease.token
          ? fmt::format("lease {} of {} is {}", lease.id, lease.verifier, lease.state)
          : fmt::format("token {} is not the token of lease {} of {}", token, lease.id,
                        lease.verifier);
  throw Refusal(409, "The lease is not held any more", detail,
                "stop this replay and ask for another lease",
                AuditNote{lease.run, "stale_lease", detail});
}

}  // namespace

Leases::Leases(Supervisor& supervisor, Metrics& metrics, Bells& bells)
    : supervisor_(supervisor), metrics_(metrics), bells_(bells) {}

void Leases::restore(LedgerTransaction& transaction) {
  Connection& connection = transaction.connection();
  for (const ledger::LeaseRow& lease : ledger::live_leases(connection)) {
    extend(lease.id, supervisor_.policy(transaction, lease.run).verifier.lease_ttl_seconds);
  }
  Query ended =
      connection.query("SELECT state, count(*) FROM leases WHERE state <> 'leased' GROUP BY state");
  while (ended.next()) {
    metrics_.lease_ended(ended.text(0), ended.integer(1));
  }
}

void Leases::check(const LeaseRequest& request) {
  if (request.verifier.empty() || request.verifier.size() > 200) {
    throw Refusal(400, "Value not accepted", fmt::format("verifier is \"{}\"", request.verifier),
                  "1 to 200 characters, unique for each verifier process");
  }
  if (is_trainer(request.verifier) != request.on_trainer) {
    throw Refusal(
        400, "Value not accepted",
        fmt::format("verifier is \"{}\" and on_trainer {}", request.verifier, request.on_trainer),
        fmt::format("a name that begins with \"{}\" for a trainer, and for nobody else",
                    kTrainerPrefix));
  }
}

std::optional<Lease> Leases::grant(LedgerTransaction& transaction, const LeaseRequest& request) {
  check(request);
  Connection& connection = transaction.connection();
  seen(request.verifier);
  const std::vector<ledger::ReplayRow> queue = ledger::queued_replays(connection, kQueueLook);
  const auto replay = std::find_if(queue.begin(), queue.end(), [&](const ledger::ReplayRow& row) {
    return may_do(connection, row, request) &&
           !better_left_to_others(connection, row, request.verifier);
  });
  if (replay == queue.end()) {
    return std::nullopt;
  }
  ledger::WindowRow window = ledger::find_window(connection, replay->run, replay->window).value();
  double now = supervisor_.now();
  int64_t token = replay->token + 1;
  ledger::set_replay_state(connection, replay->run, replay->replay, "leased", token, {}, now);
  int64_t id =
      ledger::insert_lease(connection, replay->run, replay->replay, token, request.verifier, now);
  double ttl = supervisor_.policy(transaction, replay->run).verifier.lease_ttl_seconds;
  transaction.on_commit([this, id, ttl] { extend(id, ttl); });
  show_queue(transaction);
  return Lease{
      id, token, ttl,
      ReplayTask{run_name(replay->run), replay->replay, replay->window, window.attempt, replay->arm,
                 replay->plan, replay->purpose, window.start_uri, window.start_step, window.steps,
                 window.end_uri, replay->evaluate_endpoints, replay->nudge}};
}

// A trainer does its own run's work only, and while there are verifiers, what only it can do; what
// is the trainer's nobody else does.
bool Leases::may_do(Connection& connection, const ledger::ReplayRow& replay,
                    const LeaseRequest& request) const {
  if (request.on_trainer && request.run != run_name(replay.run)) return false;
  if (request.on_trainer && !replay.on_trainer && !seen_.empty()) return false;
  if (replay.on_trainer && !request.on_trainer) return false;
  return !ledger::is_quarantined(connection, replay.run, request.verifier);
}

void Leases::seen(const std::string& verifier) {
  const double now = supervisor_.steady_now();
  if (!is_trainer(verifier)) seen_[verifier] = now;
  if (now < forgotten_at_ + kForgetSeconds) return;
  forgotten_at_ = now;
  std::erase_if(seen_, [&](const auto& entry) { return entry.second + kSeenSeconds < now; });
}

bool Leases::better_left_to_others(Connection& connection, const ledger::ReplayRow& replay,
                                   const std::string& verifier) const {
  if (replay.on_trainer) return false;
  const bool others = std::any_of(seen_.begin(), seen_.end(),
                                  [&](const auto& entry) { return entry.first != replay.avoid; });
  if (replay.avoid == verifier && others) return true;
  if (replay.token == 0) return false;
  const std::vector<std::string> failed =
      ledger::verifiers_that_failed(connection, replay.run, replay.replay);
  const auto has_failed = [&](const std::string& name) {
    return std::find(failed.begin(), failed.end(), name) != failed.end();
  };
  return has_failed(verifier) && std::any_of(seen_.begin(), seen_.end(), [&](const auto& entry) {
           return !has_failed(entry.first);
         });
}

ledger::LeaseRow Leases::held(LedgerTransaction& transaction, int64_t lease, int64_t token) {
  std::optional<ledger::LeaseRow> row = ledger::find_lease(transaction.connection(), lease);
  if (!row) {
    throw Refusal(404, "Unknown lease", fmt::format("there is no lease {}", lease),
                  "a lease from POST /v1/leases");
  }
  if (row->state != "leased" || row->token != token) {
    refuse_stale(*row, token);
  }
  return *row;
}

void Leases::heartbeat(LedgerTransaction& transaction, int64_t lease, const LeaseHeartbeat& beat) {
  ledger::LeaseRow row = held(transaction, lease, beat.token);
  ledger::touch_lease(transaction.connection(), lease, beat.token, beat.steps_done,
                      supervisor_.now());
  seen(row.verifier);
  // At once, not after COMMIT: the verifier lives, whatever becomes of the row.
  extend(lease, supervisor_.policy(transaction, row.run).verifier.lease_ttl_seconds);
}

void Leases::complete(LedgerTransaction& transaction, int64_t lease, const ReplayResult& result) {
  check_durations(result);
  Connection& connection = transaction.connection();
  std::optional<ledger::LeaseRow> known = ledger::find_lease(connection, lease);
  if (known && known->state == "completed" && known->token == result.token) {
    return;  // the first answer was lost
  }
  ledger::LeaseRow row = held(transaction, lease, result.token);
  ledger::ReplayRow replay = ledger::find_replay(connection, row.run, row.replay).value();
  check_steps(result, ledger::find_window(connection, row.run, replay.window).value());
  ledger::end_lease(connection, lease, row.token, "completed", {});
  ledger::set_replay_state(connection, row.run, row.replay, "done", row.token, {},
                           supervisor_.now());
  forget_on_commit(transaction, lease, "completed");
  supervisor_.replay_finished(transaction, replay, row.verifier, result);
}

void Leases::fail(LedgerTransaction& transaction, int64_t lease, const LeaseFailure& failure) {
  Connection& connection = transaction.connection();
  std::optional<ledger::LeaseRow> known = ledger::find_lease(connection, lease);
  if (known && known->state == "failed" && known->token == failure.token) {
    return;
  }
  ledger::LeaseRow row = held(transaction, lease, failure.token);
  ledger::end_lease(connection, lease, row.token, "failed", failure.reason);
  forget_on_commit(transaction, lease, "failed");
  requeue_or_give_up(transaction, row, failure.reason, failure.retryable);
}

std::vector<int64_t> Leases::overdue() const {
  double now = supervisor_.steady_now();
  std::lock_guard lock(mutex_);
  std::vector<int64_t> leases;
  for (const auto& [lease, deadline] : deadlines_) {
    if (deadline <= now) {
      leases.push_back(lease);
    }
  }
  return leases;
}

void Leases::expire(LedgerTransaction& transaction, int64_t lease) {
  {
    std::lock_guard lock(mutex_);
    auto found = deadlines_.find(lease);
    if (found == deadlines_.end() || found->second > supervisor_.steady_now()) {
      return;  // ended or heard of meanwhile
    }
  }
  std::optional<ledger::LeaseRow> row = ledger::find_lease(transaction.connection(), lease);
  if (!row || row->state != "leased") {
    std::lock_guard lock(mutex_);
    deadlines_.erase(lease);
    return;
  }
  std::string reason = fmt::format("{} was not heard of for the lease's time", row->verifier);
  ledger::end_lease(transaction.connection(), lease, row->token, "expired", reason);
  forget_on_commit(transaction, lease, "expired");
  requeue_or_give_up(transaction, *row, reason, true);
}

void Leases::requeue_or_give_up(LedgerTransaction& transaction, const ledger::LeaseRow& lease,
                                const std::string& reason, bool retryable) {
  Connection& connection = transaction.connection();
  ledger::ReplayRow replay = ledger::find_replay(connection, lease.run, lease.replay).value();
  ledger::WindowRow window = ledger::find_window(connection, lease.run, replay.window).value();
  double now = supervisor_.now();
  if (window.state != "open") {
    ledger::set_replay_state(connection, lease.run, lease.replay, "cancelled", lease.token, reason,
                             now);
  } else if (retryable &&
             lease.token < supervisor_.policy(transaction, lease.run).verifier.attempts_max) {
    ledger::set_replay_state(connection, lease.run, lease.replay, "queued", lease.token, reason,
                             now);
    transaction.on_commit([this] { bells_.work.ring(); });
  } else {
    ledger::set_replay_state(connection, lease.run, lease.replay, "failed", lease.token, reason,
                             now);
    supervisor_.replay_failed(transaction, replay, reason);
  }
  show_queue(transaction);
}

void Leases::extend(int64_t lease, double ttl_seconds) {
  std::lock_guard lock(mutex_);
  deadlines_[lease] = supervisor_.steady_now() + ttl_seconds;
  metrics_.set_leases_active(static_cast<int64_t>(deadlines_.size()));
}

void Leases::forget_on_commit(LedgerTransaction& transaction, int64_t lease,
                              const std::string& outcome) {
  transaction.on_commit([this, lease, outcome] {
    std::lock_guard lock(mutex_);
    deadlines_.erase(lease);
    metrics_.set_leases_active(static_cast<int64_t>(deadlines_.size()));
    metrics_.lease_ended(outcome);
  });
}

void Leases::show_queue(LedgerTransaction& transaction) {
  int64_t queued = ledger::count_queued_replays(transaction.connection());
  transaction.on_commit([this, queued] { metrics_.set_replays_queued(queued); });
}

}  // namespace gnomon
