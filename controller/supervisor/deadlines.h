// When each run wants a tick of its decision core. Set by the ledger's
// writer thread after each COMMIT, asked by a timer. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace gnomon {

class Deadlines {
 public:
  // `at` in seconds since the epoch replaces the run's deadline; one that is not finite removes it.
  void set(int64_t run, double at);
  // Runs whose deadline is at or before `now`, in order.
  std::vector<int64_t> due(double now) const;

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, double> by_run_;
};

}  // namespace gnomon
