// Faults whose probes the tests of the way back to FP8 look at.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {

inline constexpr int64_t kBegins = 201, kHolds = 100'000;  // steps
inline constexpr int64_t kOver = 240;                      // of a fault that is soon over

inline bool is_probe(const ReplayFinished& answer) { return answer.purpose == "probe"; }

// 4% a window until it is contained, then as much as `mild`.
inline Truth milder(double mild) {
  Truth truth;
  truth.total_steps = 3000;
  truth.noise_percent = 0.4;
  truth.damage = [mild](int64_t step, const std::set<std::string>& fp8) {
    if (!fp8.contains(kGuilty) || step < kBegins) return 0.0;
    return step < kOver ? 0.2 : mild / 20;
  };
  return truth;
}

inline Policy patient() {
  return with([](Policy& p) {
    p.detector.prior_scale_percent = 0.2;
    p.returning.quiet_windows_max = 4;
  });
}

inline std::vector<std::string> sentences(const SimulatedRun& run, const std::string& kind) {
  std::vector<std::string> all;
  for (const RecordDecision& decision : run.decisions(kind)) all.push_back(decision.sentence);
  return all;
}

inline int64_t probes_of_trainer(const SimulatedRun& run) {
  return std::ranges::count_if(run.effects, [](const Effect& effect) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    return order != nullptr && order->purpose == "probe" && order->on_trainer;
  });
}

}  // namespace gnomon::decide
