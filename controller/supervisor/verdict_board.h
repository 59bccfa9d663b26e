// The verdict's facts of every live run, kept after each COMMIT and rebuilt from the ledger at a
// start, so that a verdict is true at the moment at which it is asked for. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "controller/decide/run_verdict.h"

namespace gnomon {

class VerdictBoard {
 public:
  void set(int64_t run, decide::VerdictFacts facts);
  void forget(int64_t run);  // it has ended, or is being deleted
  // The run's trainer holds a replay's lease until then: it reports no step meanwhile.
  void trainer_busy(int64_t run, double until);

  struct Shown {
    decide::RunVerdict verdict;
    int64_t lag_steps = 0;
  };
  // Nothing for a run that is not live or could not be read.
  std::optional<Shown> of(int64_t run, double now) const;
  using Visit = std::function<void(int64_t run, decide::VerdictKind, const decide::VerdictFacts&)>;
  void each(double now, const Visit& visit) const;

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, decide::VerdictFacts> facts_;
  std::map<int64_t, double> busy_until_;

  double busy_until(int64_t run) const;  // with the lock held
};

}  // namespace gnomon
