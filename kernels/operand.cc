#include "kernels/operand.h"

#include <cmath>

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

}  // namespace gnomon
