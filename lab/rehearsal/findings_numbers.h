// Numbers as findings have them: JSON knows neither infinity nor a share of nothing.
#pragma once

#include <boost/json/value.hpp>
#include <cmath>
#include <cstdint>

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

}  // namespace gnomon::rehearsal
