#include "numerics/scales.h"

#include <algorithm>
#include <cmath>

namespace gnomon {
namespace {

bool usable(float amax) { return amax > 0.0f && std::isfinite(amax); }

}  // namespace

float format_max(Format format) { return static_cast<float>(format_info(format).largest); }

float current_scale(float amax, Format format) {
  if (!usable(amax)) return 1.0f;
  return std::min(format_max(format) / amax, kLargestScale);
}

float delayed_scale(float amax_of_history, Format format, int margin, float old_scale) {
  if (!usable(amax_of_history)) return old_scale;
  return std::min(std::ldexp(format_max(format) / amax_of_history, -margin), kLargestScale);
}

}  // namespace gnomon
