// What a cadence of windows can promise: how soon a lasting fault is caught.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/policy.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::decide {

struct Promise {
  double gap_percent = 0;  // what the fault costs in a window, mean of D
  // From its first step to the alarm, in 19 of 20 cases. Nothing where more are missed, or where
  // healthy windows alarm by themselves.
  std::optional<int64_t> within_steps;
};

// For a fault of so many deviations above the tolerance, where D of healthy windows has a deviation
// of `scale_percent`. Simulated with the policy's own detector after 20 healthy windows of Gaussian
// noise (gap_study.h), without the ceiling and without sentinels: what blows up is caught sooner. A
// window in which the fault begins counts for nothing. Takes some milliseconds.
Promise promise(const Policy& policy, const WindowLengths& lengths, double scale_percent,
                double deviations);
// For 1, 2 and 4 deviations.
std::vector<Promise> promises(const Policy& policy, const WindowLengths& lengths,
                              double scale_percent);

// Where a rollback mostly goes to, at most: the last verified checkpoint before a fault.
int64_t rollback_steps(const WindowLengths& lengths);

std::string promise_in_words(const Promise& promise);

}  // namespace gnomon::decide
