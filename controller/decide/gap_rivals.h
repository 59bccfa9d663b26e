// The usual control charts over the same windows as the gap detector, so that a policy can choose
// one and a benchmark can compare them. They take x = (D − δ0)/s as standard normal when all is
// well, learn s as the detector does, and stay silent until δ0 was learned. Each has a threshold in
// its own unit that is derived from the wanted mean time between false alarms, T windows of
// Gaussian noise.
#pragma once

#include <string_view>

#include "controller/decide/gap_detector.h"

namespace gnomon::decide {

// fixed     D > fixed_percent; T does not enter.
// shewhart  x > h, h the normal quantile of 1 − 1/T.
// cusum     S ← max(0, S + x − ½) > h (Page 1954); T = 2(e^b − 1 − b), b = h + 1.166 (Siegmund
// 1985). ewma      z ← 0.8 z + 0.2 x, z > h·⅓ (Roberts 1959), ⅓ being z's own deviation after many
// windows.
//           h solves the integral equation of the mean run length (Crowder 1987) as Brook and Evans
//           (1972) do; the formula here was fitted to that solution, within 1% of T for 100 ≤ T ≤
//           10⁶.
// glr       max over k ≤ 32 of (x's newest k summed)₊²/(2k) > h (Siegmund and Venkatraman 1995);
// the
//           formula for h was fitted to simulations, within 10% of T for 100 ≤ T ≤ 10⁵.
bool is_rival(std::string_view kind);
double rival_threshold(std::string_view kind, const GapSettings& settings);

// What the chart says of the new window, in `statistic`; changes what the chart remembers. A
// statistic above half the threshold (quadratic ones: a quarter) counts as not quiet.
struct RivalReading {
  double statistic = 0;
  double threshold = 0;
  bool alarm = false;
  bool quiet = true;
};
RivalReading observe_rival(GapEvidence& evidence, double d_percent, double x, bool silent,
                           const GapSettings& settings);

inline constexpr size_t kGlrWindows = 32;
inline constexpr double kCusumSlack = 0.5;
inline constexpr double kEwmaShare = 0.2;

}  // namespace gnomon::decide
