// Rows of leases. A lease ends only from state 'leased' and only with its own token: the row's
// UPDATE decides, so two that race cannot both win. As in ledger_runs.h.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "storage/rows.h"

namespace gnomon::ledger {

// Under a number that nobody can guess, so that who knows it was given the lease.
int64_t insert_lease(Connection& connection, int64_t run, int64_t replay, int64_t token,
                     const std::string& verifier, double now);
std::optional<LeaseRow> find_lease(Connection& connection, int64_t lease);
std::vector<LeaseRow> live_leases(Connection& connection);
// Those whose lease of the replay failed or ran out.
std::set<std::string> verifiers_that_failed(Connection& connection, int64_t run, int64_t replay);
// Those that have said that they cannot do such a replay, and how many of its leases ended so.
struct UnsupportedLeases {
  std::set<std::string> verifiers;
  int64_t leases = 0;
};
UnsupportedLeases unsupported_leases(Connection& connection, int64_t run, int64_t replay);
// False when the lease is not held with this token.
bool touch_lease(Connection& connection, int64_t lease, int64_t token, int64_t steps_done,
                 double now);
bool end_lease(Connection& connection, int64_t lease, int64_t token, const std::string& state,
               const std::string& reason);

// Why it failed or ran out; empty where it did neither, or said nothing.
std::string lease_reason(Connection& connection, int64_t lease);

struct LeasePriority {
  std::string verifier;
  int64_t priority = 0;  // of the replay
};
// Returns the verifiers and priorities of a run's newest leases, the newest first.
std::vector<LeasePriority> newest_lease_priorities(Connection& connection, int64_t run,
                                                   int64_t most);

}  // namespace gnomon::ledger
