#include "controller/decide/promise.h"

#include <fmt/format.h>

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
constexpr double kMissedMost = 0.05;

// Two digits, upwards: more would say that it is known better.
int64_t rounded_up(double steps) {
  const double unit = std::pow(10, std::floor(std::log10(std::max(steps, 10.0))) - 1);
  return static_cast<int64_t>(std::ceil(steps / unit) * unit);
}

}  // namespace

Promise promise(const Policy& policy, const WindowLengths& lengths, double scale_percent,
                double deviations) {
  const Delay delay =
      measure_delay(gap_settings(policy), noise_shape("gaussian"), {"shift", deviations},
                    kHealthyWindows, kRuns, kSeed, scale_percent);
  Promise made{.gap_percent = policy.detector.tolerance_percent + deviations * scale_percent,
               .within_steps = {}};
  if (delay.missed_share > kMissedMost) return made;
  // Windows that a suspicion orders follow each other; the others wait for their turn.
  const double apart = std::max(1.0, delay.p95 - delay.ordered) + 1;
  const double steps = apart * static_cast<double>(lengths.every) +
                       delay.ordered * static_cast<double>(lengths.steps);
  made.within_steps = rounded_up(steps);
  return made;
}

std::vector<Promise> promises(const Policy& policy, const WindowLengths& lengths,
                              double scale_percent) {
  std::vector<Promise> made;
  for (const double deviations : {1.0, 2.0, 4.0}) {
    made.push_back(promise(policy, lengths, scale_percent, deviations));
  }
  return made;
}

int64_t rollback_steps(const WindowLengths& lengths) { return lengths.every * 3 / 2; }

std::string promise_in_words(const Promise& promise) {
  if (!promise.within_steps) {
    return fmt::format(
        "For a lasting fault that costs {:.2g}% of the loss in a window nothing can be promised: "
        "this detector misses too many, or healthy windows set it off.",
        promise.gap_percent);
  }
  return fmt::format(
      "A lasting fault that costs {:.2g}% of the loss in a window is caught within {} steps, 19 "
      "times of 20.",
      promise.gap_percent, *promise.within_steps);
}

}  // namespace gnomon::decide
