#include "controller/decide/gap_evalues.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gnomon::decide {
namespace {

constexpr double kQuantile = 1.2815515655446004;  // of the standard normal at 90%

constexpr std::array<GapMember, kGapMembers> kSymmetric = {{
    {"sign", sign_evalue, 0.25, 0.1, false},
    {"sign", sign_evalue, 0.5, 0.1, false},
    {"sign", sign_evalue, 1, 0.1, false},
    {"moment", moment_evalue, 0.25, 0.14, true},
    {"moment", moment_evalue, 0.5, 0.14, true},
    {"moment", moment_evalue, 1, 0.14, true},
    {"moment", moment_evalue, 2, 0.14, true},
    {"moment", moment_evalue, 4, 0.14, true},
}};

constexpr std::array<GapMember, kGapMembers> kAnyShape = {{
    {"catoni", catoni_evalue, 0.125, 0.125, true},
    {"catoni", catoni_evalue, 0.25, 0.125, true},
    {"catoni", catoni_evalue, 0.5, 0.125, true},
    {"catoni", catoni_evalue, 1, 0.125, true},
    {"catoni", catoni_evalue, 1.5, 0.125, true},
    {"catoni", catoni_evalue, 2, 0.125, true},
    {"catoni", catoni_evalue, 4, 0.125, true},
    {"catoni", catoni_evalue, 8, 0.125, true},
}};

constexpr size_t kSigns = 3;
static_assert(kSymmetric[kSigns].rate == 0.25 && kSymmetric[kGapMembers - 1].rate == 4);

}  // namespace

double sign_evalue(double x, double rate) { return 2 / (1 + std::exp(-2 * rate * bounded(x))); }

double moment_evalue(double y, double rate) {
  const double a = rate * rate / (1 + rate * rate);
  const double b = bounded(y);
  return (1 - a + a * b * b) * sign_evalue(y, rate);
}

double catoni_evalue(double y, double rate) {
  const double u = rate * bounded(y);
  const double phi = u >= 0 ? 1 + u + u * u / 2 : 1 / (1 - u + u * u / 2);
  return phi / (1 + rate * rate / 2);
}

const std::array<GapMember, kGapMembers>& gap_members(bool symmetric) {
  return symmetric ? kSymmetric : kAnyShape;
}

GapEvalues gap_evalues(double x, double y, bool scale_known, bool symmetric) {
  GapEvalues e;
  if (!symmetric) {
    for (size_t j = 0; j < kGapMembers; ++j) {
      e[j] = scale_known ? catoni_evalue(y, kAnyShape[j].rate) : 1.0;
    }
    return e;
  }
  // Each rate is twice the one before: exp(−2·rate·x) is the square of the one before.
  double power = std::exp(-bounded(x) / 2);
  for (size_t j = 0; j < kSigns; ++j, power *= power) e[j] = 2 / (1 + power);
  const double b = bounded(y);
  power = std::exp(-b / 2);
  for (size_t j = kSigns; j < kGapMembers; ++j, power *= power) {
    const double a =
        kSymmetric[j].rate * kSymmetric[j].rate / (1 + kSymmetric[j].rate * kSymmetric[j].rate);
    e[j] = scale_known ? (1 - a + a * b * b) * 2 / (1 + power) : 1.0;
  }
  return e;
}

double gap_mixture(const double* sums, bool symmetric) {
  const auto& members = gap_members(symmetric);
  double total = 0;
  for (size_t j = 0; j < kGapMembers; ++j) total += members[j].weight * sums[j];
  return total;
}

double scale_confidence(double freedom) {
  if (!(freedom >= kFreedomMin)) return std::numeric_limits<double>::infinity();
  const double a = 2 / (9 * freedom);
  const double root = 1 - a - kQuantile * std::sqrt(a);
  return 1 / (root * std::sqrt(root));
}

}  // namespace gnomon::decide
