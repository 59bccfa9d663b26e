// The verifiers that have spoken lately, and what they say of themselves. Trainers are not on it.
// Thread-safe. Times are seconds of a clock that never jumps.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "controller/leases/replay_queue.h"

namespace gnomon {

class VerifierRoll {
 public:
  struct Entry {
    std::optional<VerifierProfile> profile;  // nothing: it has not asked since the daemon's start
    double counts_until = 0;
    const VerifierProfile* known() const { return profile ? &*profile : nullptr; }
  };

  // It has asked for work, and waits for it until `waits_until`.
  void asked(const std::string& name, VerifierProfile profile, double waits_until, double now);
  // It has spoken of a lease.
  void spoke(const std::string& name, double now);
  // True when one that speaks is as `wanted` says.
  bool any(double now,
           const std::function<bool(const std::string& name, const Entry& entry)>& wanted) const;

 private:
  void forget_silent(double now);

  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  double forgotten_at_ = -1e9;  // when silent ones were last taken out
};

}  // namespace gnomon
