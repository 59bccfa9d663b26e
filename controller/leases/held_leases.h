// The leases that are held now, in memory: by whom, under which token, until when. Deadlines are
// kept on a clock that never jumps and are not written down. Thread-safe. The ledger has the last
// word about a lease's state.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "controller/auth/authenticator.h"
#include "controller/leases/verifier_registry.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor/replay_queue.h"
#include "controller/supervisor/run_cache.h"

namespace gnomon {

struct HeldLease {
  int64_t run = 0;
  double since = 0;  // steady clock seconds, like the deadline
  double ttl = 0;
  int64_t token = 0;
  std::string verifier;
  bool on_verifier = true;  // and not on the run's own trainer, which takes nobody's share
  double deadline = 0;
  int waiting = 0;           // requests about it that have arrived and are not answered
  PrincipalPtr holder = {};  // null: not known
};

class HeldLeases {
 public:
  // The clocks are those of `runs`.
  HeldLeases(const RunCache& runs, Metrics& metrics, ReplayQueue& queue,
             VerifierRegistry& registry);

  // Its time begins at `held.since`.
  void add(int64_t lease, HeldLease held);
  // It has ended with this outcome.
  void end(int64_t lease, const std::string& outcome);
  // The ledger says that it ended before.
  void forget(int64_t lease);
  // The lease's time begins anew, since a request about it is handled now.
  void set_ttl(int64_t lease, double ttl_seconds);

  // A request about a lease, from its arrival until it is answered: the lease's time begins anew
  // with both, and does not run out between them, however long the ledger takes. Does nothing for a
  // lease that is not held with this token, or that somebody else holds.
  class Arrival {
   public:
    Arrival(HeldLeases& leases, int64_t lease, int64_t token, const PrincipalPtr& sender);
    ~Arrival();
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    // True when another request of the lease's holder waits for the ledger, so that nothing is
    // gained by one more heartbeat behind it.
    bool another_waits() const { return another_waits_; }

   private:
    HeldLeases& leases_;
    const int64_t lease_;
    bool counts_ = false;
    bool another_waits_ = false;
  };

  // Who asked for a lease that was granted. After a restart nobody is known, and the first who
  // speaks for the lease is taken for its holder.
  void set_holder(int64_t lease, const PrincipalPtr& holder);
  // Throws HttpError (409) when the lease belongs to another token that is still valid: one that
  // was revoked or has run out may have been replaced.
  void check_holder(int64_t lease, const PrincipalPtr& sender);

  // Leases whose time is over, for Leases::expire().
  std::vector<int64_t> overdue() const;
  bool is_overdue(int64_t lease) const;
  // Its end could not be recorded: it is overdue again after its time, so that it stands in
  // nobody's way.
  void put_off_expiry(int64_t lease);

 private:
  // These three with the lock held.
  bool is_over(const HeldLease& held, double now) const;
  bool is_holder(const HeldLease& held, const PrincipalPtr& sender) const;
  HeldLease* find(int64_t lease);

  const RunCache& runs_;
  Metrics& metrics_;
  ReplayQueue& queue_;
  VerifierRegistry& registry_;
  mutable std::mutex mutex_;
  std::map<int64_t, HeldLease> held_;  // by lease
};

}  // namespace gnomon
