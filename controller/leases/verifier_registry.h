// Registers the verifiers that were heard from lately, with their labels and abilities. Trainers
// are not in it. Thread-safe. Times are seconds of a clock that never jumps.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "controller/supervisor/replay_queue.h"

namespace gnomon {

inline constexpr double kSilentSeconds = 60;  // after its last request, and its wait, one counts

class VerifierRegistry {
 public:
  struct Entry {
    std::optional<VerifierProfile> profile;  // nothing: it has not asked since the daemon's start
    double counts_until = 0;
    const VerifierProfile* known() const { return profile ? &*profile : nullptr; }
  };

  // A verifier asked for work; it waits until `waits_until`.
  void record_request(const std::string& name, VerifierProfile profile, double waits_until,
                      double now);
  // A verifier sent a request about a lease.
  void record_contact(const std::string& name, double now);
  // True when `wanted` holds for a verifier that was heard from lately.
  bool any(double now,
           const std::function<bool(const std::string& name, const Entry& entry)>& wanted) const;

 private:
  void forget_silent(double now);

  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  double forgotten_at_ = -1e9;  // when silent ones were last taken out
};

}  // namespace gnomon
