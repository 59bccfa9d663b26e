// The e-values of the gap detector: numbers ≥ 0 made from one window whose mean under the null is
// at most 1, so that their products and sums are evidence that may be looked at whenever one likes.
// x = (D − δ0)/s and y = (D − δ0)/s⁺, where s⁺ is an upper confidence limit of the scale.
//
//   symmetric  1 + tanh(λx), valid for noise that is symmetric about a mean ≤ δ0, whatever s is:
//   tanh
//              is odd and increasing, so that its mean is ≤ 0. At most 2: it takes 17 windows to an
//              alarm, but it may speak from the first one, when nothing is known of the scale.
//   variance   φ(λy)/(1 + λ²/2) with φ(u) = 1 + u + u²/2 for u ≥ 0 and 1/(1 − u + u²/2) below:
//   valid
//              for noise of any shape whose mean is ≤ δ0 and whose standard deviation is ≤ s⁺. φ
//              increases, so that a mean under δ0 only lowers it, and φ(u) ≤ 1 + u + u²/2
//              everywhere (for u < 0 because (1 − u + u²/2)(1 + u + u²/2) = 1 + u⁴/4). Unbounded,
//              so that a blow-up is seen in one window. If the deviation is r times s⁺ its mean is
//              at most (1 + r²λ²/2)/(1 + λ²/2). φ is Catoni's (2012) narrowest influence function,
//              and its use for sequential tests that of Wang and Ramdas (2022).
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace gnomon::decide {

inline constexpr std::array<double, 5> kSymmetricRates = {0.25, 0.5, 1, 2, 4};
inline constexpr std::array<double, 6> kVarianceRates = {0.125, 0.25, 0.5, 1, 2, 4};
inline constexpr size_t kGapMembers = kSymmetricRates.size() + kVarianceRates.size();
using GapEvalues = std::array<double, kGapMembers>;

// Each is finite for finite arguments.
double symmetric_evalue(double x, double rate);
double variance_evalue(double y, double rate);

// All of them, symmetric ones first; y is not used when the scale is not `known`: the variance
// e-values are then 1.
GapEvalues gap_evalues(double x, double y, bool known);
// Of a member in the mixture; they sum to 1.
double gap_weight(size_t member);
std::string gap_member_name(size_t member);  // "symmetric 0.25"

// s⁺/s for a scale from so many degrees of freedom: √(ν/χ²) with the 10% quantile of χ² (Wilson and
// Hilferty 1931). Falls to 1 as ν grows; infinite below kFreedomMin.
inline constexpr double kFreedomMin = 2;
double scale_confidence(double freedom);

}  // namespace gnomon::decide
