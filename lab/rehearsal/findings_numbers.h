// Numbers as findings have them: JSON knows neither infinity nor a share of nothing.
#pragma once

#include <algorithm>
#include <boost/json/value.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace gnomon::rehearsal {

// Null where it is not finite.
inline boost::json::value finite(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}

// Null of nothing.
inline boost::json::value share(int64_t of, int64_t all) {
  if (all == 0) return nullptr;
  return static_cast<double>(of) / static_cast<double>(all);
}

// The least value that a share q of them is not over; NaN of none.
inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

// Wilson and Hilferty's upper limit of the mean of a Poisson variable of which `count` came.
inline double poisson_high_95(int64_t count) {
  const double next = static_cast<double>(count) + 1;
  return next * std::pow(1 - 1 / (9 * next) + 1.96 / (3 * std::sqrt(next)), 3);
}

}  // namespace gnomon::rehearsal
