// What the kernel tests share: reproducible random inputs, FP64 copies of them, error measures, and
// finite differences of FP64 references.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/philox.h"
#include "kernels/backend.h"
#include "numerics/formats.h"

namespace gnomon {

using Doubles = std::vector<double>;

// Rounding to BF16 has a relative error of at most 2^-9 for each value; its root mean square over
// many values is a little above half of that.
inline constexpr double kBf16NormError = 2.5e-3;

// Uniform in [-amplitude, amplitude].
inline std::vector<float> random_floats(uint64_t key, int64_t count, float amplitude = 1.0f) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word = philox(key, 1, static_cast<uint64_t>(i))[0];
    values[i] = amplitude * (2.0f * philox_uniform(word) - 1.0f);
  }
  return values;
}

inline std::vector<bf16> random_bf16(uint64_t key, int64_t count, float amplitude = 1.0f) {
  std::vector<bf16> values;
  for (float value : random_floats(key, count, amplitude)) values.push_back(to_bf16(value));
  return values;
}

inline Doubles doubles(std::span<const bf16> x) {
  Doubles values;
  for (bf16 value : x) values.push_back(to_float(value));
  return values;
}
inline Doubles doubles(std::span<const float> x) { return {x.begin(), x.end()}; }
inline Doubles doubles(const std::vector<bf16>& x) { return doubles(std::span<const bf16>(x)); }
inline Doubles doubles(const std::vector<float>& x) { return doubles(std::span<const float>(x)); }

inline double dot(const Doubles& x, const Doubles& y) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// ‖got − expected‖ / ‖expected‖
inline double norm_error(const Doubles& expected, const Doubles& got) {
  Doubles difference(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) difference[i] = got[i] - expected[i];
  return std::sqrt(dot(difference, difference) / dot(expected, expected));
}

// DeepGEMM's measure: 1 − 2⟨x,y⟩/(‖x‖² + ‖y‖²).
inline double calc_diff(const Doubles& x, const Doubles& y) {
  return 1.0 - 2.0 * dot(x, y) / (dot(x, x) + dot(y, y));
}

// Both measures at once; the second is about half the square of the first.
template <typename T>
void expect_close(const Doubles& expected, const T& got_values, double norm_error_max) {
  Doubles got;
  if constexpr (std::is_same_v<T, Doubles>) {
    got = got_values;
  } else {
    got = doubles(got_values);
  }
  ASSERT_EQ(expected.size(), got.size());
  for (double value : got) ASSERT_TRUE(std::isfinite(value));
  EXPECT_LT(norm_error(expected, got), norm_error_max);
  EXPECT_LT(calc_diff(expected, got), norm_error_max * norm_error_max + 1e-14);
}

// Central difference of `loss` by x[index], which is put back afterwards.
inline double finite_difference(const std::function<double()>& loss, Doubles& x, size_t index,
                                double step = 1e-4) {
  double before = x[index];
  x[index] = before + step;
  double above = loss();
  x[index] = before - step;
  double below = loss();
  x[index] = before;
  return (above - below) / (2.0 * step);
}

inline Doubles finite_differences(const std::function<double()>& loss, Doubles& x) {
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) gradient[i] = finite_difference(loss, x, i);
  return gradient;
}

inline std::vector<uint16_t> bits_of(std::span<const bf16> x) {
  std::vector<uint16_t> bits;
  for (bf16 value : x) bits.push_back(value.bits);
  return bits;
}

// RMSNorm in FP64 of rows as wide as `w`, with the epsilon that the tests of kernels use.
inline Doubles reference_norm(const Doubles& x, const Doubles& w) {
  Doubles y(x.size());
  const size_t width = w.size();
  for (size_t row = 0; row < x.size() / width; ++row) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += x[row * width + i] * x[row * width + i];
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-5f);
    for (size_t i = 0; i < width; ++i) y[row * width + i] = x[row * width + i] * rstd * w[i];
  }
  return y;
}

// Attention in FP64 with its backward pass, for one shape.
struct AttentionReference {
  AttentionShape shape;
  Doubles q, k, v;
  Doubles o;
  Doubles probabilities;  // [B, H, T, T]

  void forward();
  void backward(const Doubles& d_o, Doubles& dq, Doubles& dk, Doubles& dv) const;

 private:
  size_t q_at(int64_t b, int64_t t, int h) const;
  size_t kv_at(int64_t b, int64_t t, int h) const;
};

}  // namespace gnomon
