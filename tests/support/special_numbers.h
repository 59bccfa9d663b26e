// Infinities and NaNs for tests. The names that end in F are floats.
#pragma once

#include <limits>

namespace gnomon {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr float kInfinityF = std::numeric_limits<float>::infinity();
inline constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

}  // namespace gnomon
