#include "controller/decide/gap_rivals.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace gnomon::decide {
namespace {

constexpr std::array<std::string_view, 5> kKinds = {"fixed", "shewhart", "cusum", "ewma", "glr"};

// The value that a standard normal exceeds with this probability, by Newton's method on the tail.
double normal_quantile(double tail) {
  double x = std::sqrt(std::max(-2 * std::log(2 * tail), 0.0));
  for (int i = 0; i < 20; ++i) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    const double change = (std::erfc(x / M_SQRT2) / 2 - tail) / density;
    x += change;
    if (std::abs(change) < 1e-12) break;
  }
  return x;
}

// b of T = 2(e^b − 1 − b), by fixed-point iteration.
double cusum_threshold(double windows) {
  double b = std::log(windows / 2);
  for (int i = 0; i < 60; ++i) b = std::log(windows / 2 + 1 + b);
  return b - 1.166;
}

double ewma_threshold(double windows) {
  const double logarithm = std::log(windows);
  return std::sqrt(std::max(-4.19925 + 1.939113 * logarithm - 3.008026 / logarithm, 0.01));
}

// h of T = 5.75·e^h/√h, by fixed-point iteration.
double glr_threshold(double windows) {
  double h = std::max(std::log(windows), 1.0);
  for (int i = 0; i < 60; ++i) h = std::max(std::log(windows / 5.75) + std::log(h) / 2, 0.5);
  return h;
}

double glr_statistic(const std::vector<double>& recent) {
  double sum = 0;
  double largest = 0;
  double count = 0;
  for (auto x = recent.rbegin(); x != recent.rend(); ++x) {
    sum += *x;
    count += 1;
    if (sum > 0) largest = std::max(largest, sum * sum / (2 * count));
  }
  return largest;
}

double update(std::string_view kind, GapEvidence& evidence, double d_percent, double x) {
  if (kind == "fixed") return d_percent;
  if (kind == "shewhart") return x;
  if (kind == "cusum") return evidence.rival = std::max(0.0, evidence.rival + x - kCusumSlack);
  if (kind == "ewma") return evidence.rival += kEwmaShare * (x - evidence.rival);
  evidence.recent.push_back(x);
  if (evidence.recent.size() > kGlrWindows) evidence.recent.erase(evidence.recent.begin());
  return glr_statistic(evidence.recent);
}

}  // namespace

bool is_rival(std::string_view kind) {
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}

double rival_threshold(std::string_view kind, const GapSettings& settings) {
  if (kind == "fixed") return settings.threshold.value_or(settings.fixed_percent);
  const double windows = settings.windows_between_false_alarms;
  if (kind == "ewma") return settings.threshold.value_or(ewma_threshold(windows)) / 3;
  if (settings.threshold) return *settings.threshold;
  if (kind == "shewhart") return normal_quantile(1 / windows);
  if (kind == "cusum") return cusum_threshold(windows);
  return glr_threshold(windows);
}

RivalReading observe_rival(GapEvidence& evidence, double d_percent, double x, bool silent,
                           const GapSettings& settings) {
  const std::string_view kind = settings.kind;
  RivalReading reading;
  reading.threshold = rival_threshold(kind, settings);
  if (silent && kind != "fixed") return reading;
  reading.statistic = update(kind, evidence, d_percent, std::clamp(x, -1e6, 1e6));
  reading.alarm = reading.statistic > reading.threshold;
  if (kind != "fixed") {
    reading.quiet = reading.statistic <= reading.threshold * (kind == "glr" ? 0.25 : 0.5);
  } else {
    reading.quiet = !reading.alarm;
  }
  return reading;
}

}  // namespace gnomon::decide
