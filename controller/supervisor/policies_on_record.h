// Which policy was in force at each event of a run. A change of policy is no event: the audit log
// has the policy that was replaced, with the number of the last event that was decided under it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/policy.h"
#include "storage/ledger_connection.h"

namespace gnomon {

// To be called in the write that replaces the policy, which must save the decision state of event
// `seq` as well.
void record_replaced_policy(Connection& connection, double now, int64_t run, int64_t seq,
                            const std::string& toml);

class PoliciesOnRecord {
 public:
  // `newest`, the one in force now, must outlive it.
  PoliciesOnRecord(Connection& connection, int64_t run, const decide::Policy& newest);
  // The policy in force at event `seq`, which was recorded at `time`. Throws ConfigError for one
  // that cannot be parsed any more, Error for one that is not on record, unless guess() was called.
  const decide::Policy& at(int64_t seq, double time);
  // Takes the oldest policy on record for those that are not.
  void guess() { unknown_before_ = -std::numeric_limits<double>::infinity(); }

 private:
  struct Replaced {
    int64_t last_seq = 0;
    std::string toml;
    std::optional<decide::Policy> parsed = {};
  };
  std::vector<Replaced> replaced_;  // by last_seq
  double unknown_before_ = -std::numeric_limits<double>::infinity();
  const decide::Policy& newest_;
};

}  // namespace gnomon
