#include "storage/ledger_leases.h"

#include "base/random.h"

namespace gnomon::ledger {
namespace {

// Every reader of JSON has whole numbers up to 2^53 exactly.
constexpr int kLeaseBits = 53;

}  // namespace

int64_t insert_lease(Connection& connection, int64_t run, int64_t replay, int64_t token,
                     const std::string& verifier, double now) {
  const auto id = static_cast<int64_t>(random_bits() >> (64 - kLeaseBits));
  insert(connection, LeaseRow{id, run, replay, token, verifier, "leased", now, now, 0});
  return id;
}

std::optional<LeaseRow> find_lease(Connection& connection, int64_t lease) {
  return find<LeaseRow, "WHERE id = ?">(connection, lease);
}

std::vector<LeaseRow> live_leases(Connection& connection) {
  return select<LeaseRow, "WHERE state = 'leased' ORDER BY id">(connection);
}

std::vector<LeasePriority> newest_lease_priorities(Connection& connection, int64_t run,
                                                   int64_t most) {
  std::vector<LeasePriority> found;
  // Replays are numbered as they are ordered: the newest leases are of the newest ones.
  constexpr int64_t kReplays = 64;
  Query query = connection.query(
      "SELECT leases.verifier, replays.priority FROM leases JOIN replays ON replays.run = "
      "leases.run AND replays.replay = leases.replay WHERE leases.run = ? AND leases.replay > "
      "(SELECT max(replay) FROM replays WHERE run = ?) - ? ORDER BY leases.granted_at DESC, "
      "leases.replay DESC LIMIT ?",
      run, run, kReplays, most);
  while (query.next()) found.push_back({query.text(0), query.integer(1)});
  return found;
}

std::set<std::string> verifiers_that_failed(Connection& connection, int64_t run, int64_t replay) {
  std::set<std::string> verifiers;
  Query query = connection.query(
      "SELECT DISTINCT verifier FROM leases WHERE run = ? AND replay = ? AND state IN ('failed', "
      "'expired')",
      run, replay);
  while (query.next()) {
    verifiers.insert(query.text(0));
  }
  return verifiers;
}

UnsupportedLeases unsupported_leases(Connection& connection, int64_t run, int64_t replay) {
  UnsupportedLeases found;
  Query query = connection.query(
      "SELECT verifier FROM leases WHERE run = ? AND replay = ? AND state = 'unsupported'", run,
      replay);
  while (query.next()) {
    found.verifiers.insert(query.text(0));
    found.leases += 1;
  }
  return found;
}

std::string lease_reason(Connection& connection, int64_t lease) {
  Query query = connection.query("SELECT coalesce(reason, '') FROM leases WHERE id = ?", lease);
  return query.next() ? query.text(0) : std::string();
}

bool touch_lease(Connection& connection, int64_t lease, int64_t token, int64_t steps_done,
                 double now) {
  return connection.execute(
             "UPDATE leases SET heartbeat_at = ?, steps_done = ? WHERE id = ? AND token = ? AND "
             "state = 'leased'",
             now, steps_done, lease, token) == 1;
}

bool end_lease(Connection& connection, int64_t lease, int64_t token, const std::string& state,
               const std::string& reason) {
  return connection.execute(
             "UPDATE leases SET state = ?, reason = ? WHERE id = ? AND token = ? AND state = "
             "'leased'",
             state, reason.empty() ? std::nullopt : std::optional<std::string>(reason), lease,
             token) == 1;
}

}  // namespace gnomon::ledger
