#include "trainer/engine/hf_import.h"

#include <gtest/gtest.h>
#include <cmath>

namespace gnomon::test {
TEST(HalfToFloat, EveryFiniteHalfIsItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    const int fraction = static_cast<int>(bits & 0x3ff);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const float found = half_to_float(static_cast<uint16_t>(bits));
    if (exponent == 0x1f) {
      EXPECT_EQ(std::isinf(found), fraction == 0) << bits;
      EXPECT_EQ(std::isnan(found), fraction != 0) << bits;
    } else {
      const double value = exponent == 0 ? std::ldexp(fraction, -24)
                                         : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(static_cast<double>(found), sign * value) << bits;
    }
    EXPECT_EQ(std::signbit(found), (bits & 0x8000) != 0) << bits;
  }
}
}  // namespace gnomon::test
