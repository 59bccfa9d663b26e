// Timing for the benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <vector>

#include "base/errors.h"

namespace gnomon {

// The upper one of two in the middle. `values` must not be empty.
inline double median(std::vector<double> values) {
  GNOMON_ASSERT(!values.empty());
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Other work on the machine prolongs `seconds` much and `cpu_seconds`, of all threads of this
// process, little.
struct Duration {
  double seconds;
  double cpu_seconds;
};

// One duration a round.
struct Durations {
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;
  void add(const Duration& duration) {
    seconds.push_back(duration.seconds);
    cpu_seconds.push_back(duration.cpu_seconds);
  }
};

// Runs from its construction.
class Stopwatch {
 public:
  Duration read() const {
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(),
            static_cast<double>(std::clock() - cpu_start_) / CLOCKS_PER_SEC};
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::clock_t cpu_start_ = std::clock();
};

}  // namespace gnomon
