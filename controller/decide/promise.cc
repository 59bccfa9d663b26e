#include "controller/decide/promise.h"

#include <algorithm>
#include <cmath>

#include "controller/decide/gap_noise.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/gap_study.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kRuns = 400;  // their 95th percentile moves by a few per cent
constexpr int64_t kHealthyWindows = 20;
constexpr uint64_t kSeed = 1;

// Two digits, upwards: more would say that it is known better.
int64_t rounded_up(double steps) {
  const double unit = std::pow(10, std::floor(std::log10(std::max(steps, 10.0))) - 1);
  return static_cast<int64_t>(std::ceil(steps / unit) * unit);
}

}  // namespace

std::vector<Promise> promises(const Policy& policy, const WindowLengths& lengths,
                              double scale_percent) {
  std::vector<Promise> made;
  for (const double deviations : {1.0, 2.0, 4.0}) {
    const Delay delay = measure_delay(gap_settings(policy), noise_shape("gaussian"),
                                      {"shift", deviations}, kHealthyWindows, kRuns, kSeed);
    // Windows that a suspicion orders follow each other; the others wait for their turn.
    const double apart = std::max(1.0, delay.p95 - delay.ordered) + 1;
    const double steps = apart * static_cast<double>(lengths.every) +
                         delay.ordered * static_cast<double>(lengths.steps);
    made.push_back(
        {policy.detector.tolerance_percent + deviations * scale_percent, rounded_up(steps)});
  }
  return made;
}

}  // namespace gnomon::decide
