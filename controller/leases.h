// Leases of replays: who works on what, until when. A lease is lost when its verifier does not
// speak for the TTL of the run's policy; the replay then goes back to the queue, up to the policy's
// number of leases. Deadlines are kept on a clock that never jumps and are not written down: after
// a restart every live lease gets a fresh TTL. A trainer that replays is asked for what only it can
// do, and for its own run's other replays while no verifier speaks.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "controller/bell.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor.h"
#include "protocol/messages.h"
#include "storage/ledger.h"
#include "storage/ledger_leases.h"

namespace gnomon {

class Leases {
 public:
  Leases(Supervisor& supervisor, Metrics& metrics, Bells& bells);

  // Gives every live lease of the ledger a fresh TTL. Once, before the first request.
  void restore(LedgerTransaction& transaction);

  // Throws Refusal (400), whether there is work or not.
  static void check(const LeaseRequest& request);
  // The next replay in the queue for this verifier; nothing when there is none for it. One that it
  // has failed is left to the others, as long as there is one that speaks and has not failed it:
  // a broken verifier is always the first to ask again.
  std::optional<Lease> grant(LedgerTransaction& transaction, const LeaseRequest& request);
  // These throw Refusal: 404 for a lease that never was, 409 when it is not held with this token
  // any more.
  void heartbeat(LedgerTransaction& transaction, int64_t lease, const LeaseHeartbeat& beat);
  // A repeat by the same lease is accepted and changes nothing.
  void complete(LedgerTransaction& transaction, int64_t lease, const ReplayResult& result);
  void fail(LedgerTransaction& transaction, int64_t lease, const LeaseFailure& failure);

  // Leases whose time is over, for expire().
  std::vector<int64_t> overdue() const;
  // Ends the lease if it is still held and still overdue.
  void expire(LedgerTransaction& transaction, int64_t lease);

 private:
  void seen(const std::string& verifier);
  bool may_do(Connection& connection, const ledger::ReplayRow& replay,
              const LeaseRequest& request) const;
  bool better_left_to_others(Connection& connection, const ledger::ReplayRow& replay,
                             const std::string& verifier) const;
  ledger::LeaseRow held(LedgerTransaction& transaction, int64_t lease, int64_t token);
  void extend(int64_t lease, double ttl_seconds);
  void forget_on_commit(LedgerTransaction& transaction, int64_t lease, const std::string& outcome);
  void requeue_or_give_up(LedgerTransaction& transaction, const ledger::LeaseRow& lease,
                          const std::string& reason, bool retryable);
  void show_queue(LedgerTransaction& transaction);

  Supervisor& supervisor_;
  Metrics& metrics_;
  Bells& bells_;
  mutable std::mutex mutex_;
  std::map<int64_t, double> deadlines_;  // by lease, steady clock seconds
  // By verifier, trainers aside, when it spoke last, steady clock seconds. The writer's thread
  // only.
  std::map<std::string, double> seen_;
  double forgotten_at_ = -1e9;  // when silent ones were last taken out
};

}  // namespace gnomon
