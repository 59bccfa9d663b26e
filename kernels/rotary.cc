#include "kernels/rotary.h"

#include <cmath>
#include <numbers>

namespace gnomon {

double Rotary::frequency(int pair, int head_dim) const {
  const double plain = std::pow(theta, -2.0 * pair / head_dim);
  if (scaling.kind == RopeScaling::Kind::kNone) return plain;
  const double slow = plain / scaling.factor;
  if (scaling.kind == RopeScaling::Kind::kLinear) return slow;
  const double turns =
      static_cast<double>(scaling.original_context) * plain / (2 * std::numbers::pi);
  if (turns < scaling.low_frequency) return slow;
  if (turns > scaling.high_frequency) return plain;
  const double smooth =
      (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
  return (1 - smooth) * slow + smooth * plain;
}

RotaryTable::RotaryTable(int64_t tokens, int head_dim, const Rotary& rotary) {
  for (int64_t position = 0; position < tokens; ++position) {
    for (int pair = 0; pair < head_dim / 2; ++pair) {
      const double angle = static_cast<double>(position) * rotary.frequency(pair, head_dim);
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace gnomon
