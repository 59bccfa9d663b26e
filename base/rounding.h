// Whole numbers rounded to multiples of a unit. Both at least 0, `unit` not 0.
#pragma once

#include <cstdint>

namespace gnomon {

constexpr int64_t round_down(int64_t value, int64_t unit) { return value / unit * unit; }
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return round_down(value + unit - 1, unit);
}

}  // namespace gnomon
