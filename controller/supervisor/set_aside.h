// The runs whose decision state can neither be read nor rebuilt. All readers of states in the
// daemon go through here, so that such a run is tried once and not with every request. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/supervisor/decision_state.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_runs.h"

namespace gnomon {

class SetAsideRuns {
 public:
  struct Entry {
    int64_t run = 0;
    std::string label;
    std::string reason;
  };
  struct Read {
    decide::Policy policy;
    std::optional<StateOnRecord> known;  // nothing: no event yet, or it is being deleted
  };

  // The policy and the state of the run. Throws RunSetAside, at once while what is written down of
  // a run that was set aside has not changed.
  Read read(Connection& connection, const RunRow& run, const LateEffects& late = {});

  // For another reason than its state.
  void add(Connection& connection, const RunRow& run, const std::string& reason);
  // A write that had mended it was undone.
  void add_again(const RunRow& run, const std::string& reason) { put(run, reason, 0); }
  // Empty: the run is not set aside, as far as is known.
  std::string reason(int64_t run) const;
  std::vector<Entry> all() const;
  // Those that were set aside since the last call, or of which retry_notice() has said so.
  std::vector<Entry> newcomers();
  void retry_notice(int64_t run);
  void forget(int64_t run);

 private:
  struct Known {
    Entry entry;
    uint64_t written = 0;  // hash of what was tried
    bool notified = false;
  };
  void put(const RunRow& run, const std::string& reason, uint64_t written);

  mutable std::mutex mutex_;
  std::map<int64_t, Known> runs_;
};

}  // namespace gnomon
