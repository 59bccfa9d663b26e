// Leases of replays: who works on what, until when. A lease is lost when its verifier does not
// speak for the TTL of the run's policy; the replay then goes back to the queue, up to the policy's
// number of leases. After a restart every live lease gets a fresh TTL. A trainer that replays is
// asked for what only it can do, and for its own run's other replays while no verifier speaks that
// has what the run requires.
//
// What waits, and whose turn it is, is the replay queue's (replay_queue.h). A replay that is
// granted is taken off the queue at once, so that no other write of the same group grants it too,
// and comes back when the grant is undone; everything else about the queue follows a commit.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "controller/leases/held_leases.h"
#include "controller/leases/unschedulable_replays.h"
#include "controller/leases/verifier_registry.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor/replay_queue.h"
#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"
#include "storage/ledger.h"
#include "storage/ledger_leases.h"

namespace gnomon {

class Leases {
 public:
  Leases(RunCache& runs, Metrics& metrics, ReplayQueue& queue);

  // Gives every live lease of the ledger a fresh TTL and queues the replays that wait. Called once,
  // before the first request. Leaves the leases and replays of a run that is set aside alone.
  void restore(LedgerTransaction& transaction);

  // Records a request for work that waits up to `wait_seconds`; from now on a verifier counts as
  // active. Returns the worker as the queue knows it. Throws HttpError (400), with or without work.
  ReplayQueue::Worker register_request(const LeaseRequest& request, double wait_seconds);
  // True when the queue has a replay for it.
  bool has_work_for(const ReplayQueue::Worker& worker) const;
  // The replay whose turn it is; nothing when there is none for this worker, which then has
  // declined what the queue had for it. One that it has failed is left to the others, as long as
  // there is one that speaks, has what the run requires and has not failed it: a broken verifier is
  // always the first to ask again.
  std::optional<Lease> grant(LedgerTransaction& transaction, ReplayQueue::Worker& worker);
  // These throw HttpError: 404 for a lease that never was, 409 when it is not held with this token
  // any more.
  void heartbeat(LedgerTransaction& transaction, int64_t lease, const LeaseHeartbeat& beat);
  // A repeat with the same values is accepted and changes nothing; one with others is refused
  // (409).
  void complete(LedgerTransaction& transaction, int64_t lease, const ReplayResult& result);
  void fail(LedgerTransaction& transaction, int64_t lease, const LeaseFailure& failure);

  // The leases that are held now, with what needs no ledger.
  HeldLeases& held() { return held_; }
  // Ends the lease if it is still held and still overdue.
  void expire(LedgerTransaction& transaction, int64_t lease);
  // Ends the leases of a run that is being deleted.
  void end_leases_of(LedgerTransaction& transaction, int64_t run);

  // Called each second or so. Counts replays that wait while no verifier in contact can do them,
  // posts a notice for runs where that is new, and fails those that nobody will do.
  void watch_unschedulable(Ledger& ledger);

 private:
  void restore_runs(LedgerTransaction& transaction, const std::set<int64_t>& runs);
  void restore_turn(LedgerTransaction& transaction, int64_t run);
  bool others_speak(const ReplayRow& replay,
                    const std::function<bool(const std::string& name)>& may) const;
  bool better_left_to_others(Connection& connection, const ReplayRow& replay,
                             const ReplayQueue::Worker& worker) const;
  std::set<std::string> unfit_for(Connection& connection, const ReplayRow& replay) const;
  bool others_fit(const ReplayRow& replay, const std::set<std::string>& unfit) const;
  std::optional<ReplayRow> next_for(LedgerTransaction& transaction, ReplayQueue::Worker& worker);
  void remove_from_queue(LedgerTransaction& transaction, const QueuedReplay& entry,
                         bool on_verifier);
  LeaseRow live_row(LedgerTransaction& transaction, int64_t lease, int64_t token);
  void check_repeat(Connection& connection, const LeaseRow& lease,
                    const ReplayResult& result) const;
  void end_on_commit(LedgerTransaction& transaction, int64_t lease, const std::string& outcome);
  void requeue_or_give_up(LedgerTransaction& transaction, const LeaseRow& lease,
                          const std::string& reason, bool retryable);
  QueuedReplay queued(Connection& connection, const ReplayRow& replay) const;
  void give_up(LedgerTransaction& transaction, const QueuedReplay& entry);

  RunCache& runs_;
  Metrics& metrics_;
  ReplayQueue& queue_;
  VerifierRegistry registry_;
  HeldLeases held_;
  UnschedulableReplays unschedulable_;
};

}  // namespace gnomon
