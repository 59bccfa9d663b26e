// The e-values of the gap detector: numbers ≥ 0 made from one window whose mean under the null is
// at most 1, so that their products and sums are evidence that may be looked at whenever one likes.
// x = (D − δ0)/s and y = (D − δ0)/s⁺, where s⁺ is an upper confidence limit of the scale. Each
// increases in D, so that a mean below δ0 only lowers it and the worst case is a mean of δ0.
//
//   sign      1 + tanh(λx): valid for noise that is symmetric about its mean, whatever s is,
//   because
//             tanh is odd. At most 2, so that it takes 17 windows to an alarm, but it may speak
//             from the first one, when nothing is known of the scale.
//   moment    (1 − a + a·y²)·(1 + tanh(λy)), a = λ²/(1 + λ²): valid for symmetric noise whose
//   standard
//             deviation is at most s⁺: the first factor is even with a mean ≤ 1, what tanh adds is
//             odd. It increases for y < 0 because there the logarithm's slope is at least
//             λ − 2a|y|/(1 − a + a·y²) ≥ λ − √(a/(1 − a)) = 0. Unbounded: a blow-up is seen in one
//             window. For a Gaussian shift its logarithm grows nearly as fast as the likelihood
//             ratio's: 0.99, 0.95 and 0.83 of it at 1, 1.5 and 2 deviations.
//   catoni    φ(λy)/(1 + λ²/2) with φ(u) = 1 + u + u²/2 for u ≥ 0 and 1/(1 − u + u²/2) below: valid
//             for noise of any shape whose standard deviation is at most s⁺, since φ(u) ≤ 1 + u +
//             u²/2 everywhere (for u < 0 because (1 − u + u²/2)(1 + u + u²/2) = 1 + u⁴/4). Slower
//             than `moment`. φ is Catoni's (2012) influence function, its use in sequential tests
//             that of Wang and Ramdas (2022).
//
// When the deviation is r·s⁺ with r > 1, the mean of `moment` is at most 1 + a(r² − 1), that of
// `catoni` at most (1 + r²λ²/2)/(1 + λ²/2).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace gnomon::decide {

// Per cent or deviations: what lies beyond counts as this, and nothing overflows.
inline double bounded(double x) { return std::clamp(x, -1e6, 1e6); }

double sign_evalue(double x, double rate);
double moment_evalue(double y, double rate);
double catoni_evalue(double y, double rate);

inline constexpr size_t kGapMembers = 8;
using GapEvalues = std::array<double, kGapMembers>;

struct GapMember {
  const char* name;
  double (*evalue)(double, double);
  double rate;
  double weight;  // in the mixture; they sum to 1
  bool scaled;    // takes y and is 1 while s⁺ is not known; otherwise takes x
};
// For symmetric noise: sign and moment; for noise of any shape: catoni.
const std::array<GapMember, kGapMembers>& gap_members(bool symmetric);

GapEvalues gap_evalues(double x, double y, bool scale_known, bool symmetric);
double gap_mixture(const double* sums, bool symmetric);

// s⁺/s for a scale from so many degrees of freedom: √(ν/χ²) with the 10% quantile of χ² (Wilson and
// Hilferty 1931). Falls to 1 as ν grows; infinite below kFreedomMin.
inline constexpr double kFreedomMin = 2;
double scale_confidence(double freedom);

}  // namespace gnomon::decide
