#include "kernels/operand.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/scales.h"

namespace gnomon {

float tensor_scale(const Rounding& rounding, float amax) {
  const Quantizer& how = rounding.quantizer;
  float scale = 1;
  if (rounding.given) {
    scale = *rounding.given;
  } else if (how.rule == ScaleRule::kGiven) {
    scale = delayed_scale(amax, how.format, rounding.margin, 1.0f);
  } else if (how.rule != ScaleRule::kNone) {
    scale = tile_scale(how.rule, how.format, amax);
  }
  return std::ldexp(scale, rounding.log2_shift);
}

void CastCounts::add(const CastCounts& other) {
  values += other.values;
  saturated += other.saturated;
  flushed += other.flushed;
  peak = std::max(peak, other.peak);
}

float peak_over_largest(float scaled_amax, Format format) {
  return std::min(scaled_amax / format_max(format), std::numeric_limits<float>::max());
}

}  // namespace gnomon
