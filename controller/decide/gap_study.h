// Simulated runs for the gap detector and its rivals: how long until a false alarm, how long until
// a fault is found. What is simulated is the worst healthy run there is: its mean gap is exactly
// what is tolerated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "controller/decide/gap_detector.h"
#include "controller/decide/gap_noise.h"

namespace gnomon::decide {

struct FalseAlarms {
  int64_t windows = 0;
  int64_t alarms = 0;
  int64_t suspicions = 0;
  int64_t burst_windows = 0;  // of `windows`, those that a suspicion ordered
  // Windows per alarm, and its 95% interval (Wilson and Hilferty's for a Poisson count).
  double between = 0;
  double between_low = 0;
  double between_high = 0;
};

// Runs that end with their first alarm or after `run_windows` windows, burn-in included, until
// there are `alarms_max` alarms or `windows_max` windows.
FalseAlarms count_false_alarms(const GapSettings& settings, const NoiseShape& shape,
                               int64_t run_windows, int64_t alarms_max, int64_t windows_max,
                               uint64_t seed);

// The same detector with its own setting (false alarms wanted, or a rival's threshold) such that
// the measured windows between false alarms are `windows`, within about a tenth.
GapSettings calibrated(GapSettings settings, const NoiseShape& shape, double windows,
                       uint64_t seed);

// What happens to the mean of D, in deviations above what is tolerated, `windows` ≥ 1 after the
// fault's first window: a shift to `size`; a ramp of `size` more each window; a blow-up of `size`
// doubled each window.
struct GapFault {
  std::string kind;  // shift, ramp, blow_up
  double size = 0;
  double at(int64_t windows) const;
};
std::vector<GapFault> gap_faults();

struct Delay {
  double mean = 0;  // windows from the fault's first to the alarm's, both counted
  double p95 = 0;
  double ordered = 0;       // of the mean: windows that a suspicion ordered, and are there at once
  double missed_share = 0;  // no alarm within kDelayMax windows; they count as kDelayMax
};
inline constexpr int64_t kDelayMax = 2000;
inline constexpr double kStudyDeviation = 0.05;  // of D in healthy windows, per cent

// The fault comes after `healthy_windows` windows without an alarm. Of 20 times `runs` attempts
// that many must get so far: of a detector that does not let them every fault counts as missed.
Delay measure_delay(const GapSettings& settings, const NoiseShape& shape, const GapFault& fault,
                    int64_t healthy_windows, int64_t runs, uint64_t seed,
                    double deviation_percent = kStudyDeviation);

}  // namespace gnomon::decide
