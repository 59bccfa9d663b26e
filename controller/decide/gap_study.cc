#include "controller/decide/gap_study.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "controller/decide/gap_rivals.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kAttemptsMost = 20;  // for each run that is wanted

// Healthy or not: `excess` deviations above what is tolerated.
GapSample sample_at(double excess, const GapSettings& settings, GapNoise& noise,
                    double deviation = kStudyDeviation) {
  GapSample sample;
  sample.d_percent = settings.tolerance_percent + deviation * (excess + noise.next());
  return sample;
}

GapSettings without_ceiling(GapSettings settings) {
  settings.ceiling_percent = INFINITY;
  return settings;
}

// The quantiles of a Poisson mean, by the cube-root approximation of χ².
double poisson_bound(double count, double z) {
  if (count <= 0) return 0;
  const double root = 1 - 1 / (9 * count) + z / (3 * std::sqrt(count));
  return count * root * root * root;
}

// The knob of calibrated(): false alarms wanted, or the threshold.
void turn(GapSettings& settings, double value) {
  if (is_rival(settings.kind)) {
    settings.threshold = value;
  } else {
    settings.windows_between_false_alarms = value;
  }
}

}  // namespace

FalseAlarms count_false_alarms(const GapSettings& wanted, const NoiseShape& shape,
                               int64_t run_windows, int64_t alarms_max, int64_t windows_max,
                               uint64_t seed) {
  const GapSettings settings = without_ceiling(wanted);
  FalseAlarms result;
  GapNoise noise(shape, seed);
  while (result.alarms < alarms_max && result.windows < windows_max) {
    GapState state;
    bool alarm = false;
    for (int64_t w = 0; w < run_windows && !alarm; ++w) {
      if (state.evidence.burst_left > 0) result.burst_windows += 1;
      const GapVerdict verdict = observe_gap(state, sample_at(0, settings, noise), settings);
      result.windows += 1;
      result.suspicions += verdict.suspicious;
      alarm = verdict.alarm;
    }
    result.alarms += alarm;
  }
  const auto windows = static_cast<double>(result.windows);
  const auto alarms = static_cast<double>(result.alarms);
  result.between = windows / std::max(alarms, 1.0);
  result.between_low = windows / poisson_bound(alarms + 1, 1.96);
  result.between_high = alarms > 0 ? windows / poisson_bound(alarms, -1.96) : INFINITY;
  return result;
}

GapSettings calibrated(GapSettings settings, const NoiseShape& shape, double windows,
                       uint64_t seed) {
  const bool rival = is_rival(settings.kind);
  double low = rival ? 0.05 : 2;
  double high = rival ? 400 : 100 * windows;
  for (int i = 0; i < 14; ++i) {
    const double middle = std::sqrt(low * high);
    turn(settings, middle);
    // Early on a rough count is enough to know the side.
    const int64_t alarms = i < 6 ? 60 : 300;
    const FalseAlarms found =
        count_false_alarms(settings, shape, static_cast<int64_t>(20 * windows), alarms,
                           static_cast<int64_t>(2 * windows * static_cast<double>(alarms)), seed);
    (found.between < windows ? low : high) = middle;
  }
  turn(settings, std::sqrt(low * high));
  return settings;
}

double GapFault::at(int64_t windows) const {
  const auto n = static_cast<double>(windows);
  if (kind == "ramp") return size * n;
  if (kind == "blow_up") return size * std::exp2(std::min(n - 1, 60.0));
  return size;
}

std::vector<GapFault> gap_faults() {
  std::vector<GapFault> faults;
  for (double size : {0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0}) faults.push_back({"shift", size});
  for (double size : {0.02, 0.05, 0.2}) faults.push_back({"ramp", size});
  for (double size : {0.25, 1.0}) faults.push_back({"blow_up", size});
  return faults;
}

Delay measure_delay(const GapSettings& wanted, const NoiseShape& shape, const GapFault& fault,
                    int64_t healthy_windows, int64_t runs, uint64_t seed,
                    double deviation_percent) {
  const GapSettings settings = without_ceiling(wanted);
  GapNoise noise(shape, seed);
  std::vector<double> delays;
  double ordered = 0;
  double missed = 0;
  for (int64_t i = 0; std::ssize(delays) < runs; ++i) {
    if (i == kAttemptsMost * runs) {
      return {.mean = kDelayMax, .p95 = kDelayMax, .ordered = 0, .missed_share = 1};
    }
    GapState state;
    bool false_alarm = false;
    for (int64_t w = 0; w < healthy_windows && !false_alarm; ++w) {
      false_alarm =
          observe_gap(state, sample_at(0, settings, noise, deviation_percent), settings).alarm;
    }
    if (false_alarm) continue;
    int64_t w = 0;
    for (bool alarm = false; !alarm && w < kDelayMax;) {
      if (state.evidence.burst_left > 0) ordered += 1;
      w += 1;
      alarm =
          observe_gap(state, sample_at(fault.at(w), settings, noise, deviation_percent), settings)
              .alarm;
      if (!alarm && w == kDelayMax) missed += 1;
    }
    delays.push_back(static_cast<double>(w));
  }
  std::sort(delays.begin(), delays.end());
  const auto count = static_cast<double>(delays.size());
  Delay delay;
  delay.mean = std::accumulate(delays.begin(), delays.end(), 0.0) / count;
  delay.p95 = delays[static_cast<size_t>(0.95 * count)];
  delay.ordered = ordered / count;
  delay.missed_share = missed / count;
  return delay;
}

}  // namespace gnomon::decide
