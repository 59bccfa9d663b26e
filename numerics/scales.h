// Scale arithmetic of the per-tensor FP8 recipes, apart from any tensor: how the maximum of a
// tensor becomes the factor it is multiplied by before rounding. Formulas:
// docs/recipes.md.
#pragma once

#include "numerics/formats.h"

namespace gnomon {

// No scale is above this, so that the product of two stays finite and its reciprocal a normal FP32
// number.
inline constexpr float kLargestScale = 0x1p60f;

// The largest finite value of the format, which the tensor's maximum is scaled to.
float format_max(Format format);

// `current` scaling: format_max/amax, at most kLargestScale. An amax of 0, Inf or NaN (or below 0)
// says nothing about the tensor's range and gives 1.
float current_scale(float amax, Format format);

// `delayed` scaling: (format_max/amax_of_history)/2^margin, at most kLargestScale. An amax of 0,
// Inf or NaN (or below 0) keeps old_scale.
float delayed_scale(float amax_of_history, Format format, int margin, float old_scale);

}  // namespace gnomon
