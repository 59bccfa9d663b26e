#include "controller/decide/gap_evalues.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gnomon::decide {
namespace {

constexpr double kArgumentMax = 1e6;  // deviations; what lies beyond counts as this
constexpr double kSymmetricShare = 0.4;
constexpr double kQuantile = 1.2815515655446004;  // of the standard normal at 90%

}  // namespace

double symmetric_evalue(double x, double rate) { return 2 / (1 + std::exp(-2 * rate * x)); }

double variance_evalue(double y, double rate) {
  const double u = rate * std::clamp(y, -kArgumentMax, kArgumentMax);
  const double phi = u >= 0 ? 1 + u + u * u / 2 : 1 / (1 - u + u * u / 2);
  return phi / (1 + rate * rate / 2);
}

GapEvalues gap_evalues(double x, double y, bool known) {
  GapEvalues e;
  size_t member = 0;
  // exp(−x/2) and its squares serve all rates, each twice the one before.
  static_assert(kSymmetricRates[0] == 0.25 && kSymmetricRates[4] == 4);
  double power = std::exp(-std::clamp(x, -40.0, 40.0) / 2);
  for (size_t i = 0; i < kSymmetricRates.size(); ++i) {
    e[member++] = 2 / (1 + power);
    power *= power;
  }
  for (double rate : kVarianceRates) e[member++] = known ? variance_evalue(y, rate) : 1.0;
  return e;
}

double gap_weight(size_t member) {
  return member < kSymmetricRates.size()
             ? kSymmetricShare / static_cast<double>(kSymmetricRates.size())
             : (1 - kSymmetricShare) / static_cast<double>(kVarianceRates.size());
}

std::string gap_member_name(size_t member) {
  return member < kSymmetricRates.size()
             ? fmt::format("symmetric {}", kSymmetricRates[member])
             : fmt::format("variance {}", kVarianceRates[member - kSymmetricRates.size()]);
}

double scale_confidence(double freedom) {
  if (!(freedom >= kFreedomMin)) return std::numeric_limits<double>::infinity();
  const double a = 2 / (9 * freedom);
  const double root = 1 - a - kQuantile * std::sqrt(a);
  return 1 / (root * std::sqrt(root));
}

}  // namespace gnomon::decide
