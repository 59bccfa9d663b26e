#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/vector_math.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

double silu(double x) { return x / (1.0 + std::exp(-x)); }

TEST(FastExp, IsExactToTwoUlpAndKeepsNan) {
  for (int i = -873000; i <= 883000; ++i) {
    float x = static_cast<float>(i) * 1e-4f;
    double expected = std::exp(static_cast<double>(x));
    ASSERT_NEAR(cpu::fast_exp(x) / expected, 1.0, 2 * 0x1p-23) << x;
  }
  EXPECT_LT(cpu::fast_exp(-std::numeric_limits<float>::infinity()), 2e-38f);
  EXPECT_GT(cpu::fast_exp(std::numeric_limits<float>::infinity()), 2e38f);
  EXPECT_TRUE(std::isnan(cpu::fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Swiglu, EqualsTheReference) {
  auto backend = make_cpu_backend(2);
  for (int64_t size : {1, 15, 33, 4096, 10007}) {
    auto gate = random_bf16(1, size, 9.0f);
    auto up = random_bf16(2, size, 3.0f);
    std::vector<bf16> y(gate.size());
    backend->swiglu(gate.data(), up.data(), 1, std::ssize(gate), 0, y.data());
    Doubles expected;
    for (size_t i = 0; i < y.size(); ++i)
      expected.push_back(silu(to_float(gate[i])) * to_float(up[i]));
    expect_close(expected, y, size == 1 ? 4e-3 : kBf16NormError);
  }
}

TEST(Swiglu, ExtremeGatesAndNan) {
  auto backend = make_cpu_backend(1);
  std::vector<bf16> up(4, to_bf16(1.0f)), y(4);
  std::vector<bf16> gate = {to_bf16(-1e30f), to_bf16(-200.0f), to_bf16(1e30f),
                            to_bf16(std::numeric_limits<float>::quiet_NaN())};
  backend->swiglu(gate.data(), up.data(), 1, std::ssize(gate), 0, y.data());
  EXPECT_NEAR(to_float(y[1]), 0.0f, 1e-30f);
  EXPECT_EQ(to_float(y[2]), to_float(gate[2]));
  EXPECT_TRUE(std::isnan(to_float(y[3])));
}

TEST(SwigluBackward, EqualsFiniteDifferences) {
  auto backend = make_cpu_backend(2);
  for (int64_t size : {1, 33, 301}) {
    auto gate = random_bf16(1, size, 6.0f);
    auto up = random_bf16(2, size, 3.0f);
    auto dy = random_bf16(3, size);
    std::vector<bf16> dgate(gate.size()), dup(gate.size());
    backend->swiglu_backward(gate.data(), up.data(), dy.data(), 1, std::ssize(gate), 0,
                             dgate.data(), dup.data(), 0);
    Doubles g = doubles(gate), u = doubles(up);
    Doubles dgate_expected, dup_expected;
    for (size_t i = 0; i < g.size(); ++i) {
      auto loss = [&] { return to_float(dy[i]) * silu(g[i]) * u[i]; };
      dgate_expected.push_back(finite_difference(loss, g, i));
      dup_expected.push_back(finite_difference(loss, u, i));
    }
    expect_close(dgate_expected, dgate, size == 1 ? 4e-3 : kBf16NormError);
    expect_close(dup_expected, dup, size == 1 ? 4e-3 : kBf16NormError);
  }
}

TEST(SwigluBackward, MayWriteOverItsInputs) {
  auto backend = make_cpu_backend(2);
  auto gate = random_bf16(1, 1000, 4.0f), up = random_bf16(2, 1000), dy = random_bf16(3, 1000);
  std::vector<bf16> dgate(1000), dup(1000);
  backend->swiglu_backward(gate.data(), up.data(), dy.data(), 1, std::ssize(gate), 0, dgate.data(),
                           dup.data(), 0);
  backend->swiglu_backward(gate.data(), up.data(), dy.data(), 1, std::ssize(gate), 0, gate.data(),
                           up.data(), 0);
  EXPECT_EQ(bits_of(gate), bits_of(dgate));
  EXPECT_EQ(bits_of(up), bits_of(dup));
}

// Pairs (i, i + half) of each head turn by position·theta^(−2i/dim).
TEST(Rope, TurnsTheHalvesOfEachHeadByTheirAngle) {
  auto backend = make_cpu_backend(2);
  for (int head_dim : {2, 6, 64}) {
    constexpr int64_t kTokens = 11;
    constexpr int kHeads = 3;
    auto x = random_bf16(1, 2 * kTokens * kHeads * head_dim);
    Doubles expected = doubles(x);
    for (int64_t row = 0; row < 2 * kTokens; ++row) {
      for (int head = 0; head < kHeads; ++head) {
        for (int i = 0; i < head_dim / 2; ++i) {
          int64_t at = (row * kHeads + head) * head_dim + i;
          double angle =
              static_cast<double>(row % kTokens) * std::pow(10000.0, -2.0 * i / head_dim);
          double a = to_float(x[at]), b = to_float(x[at + head_dim / 2]);
          expected[at] = a * std::cos(angle) - b * std::sin(angle);
          expected[at + head_dim / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    backend->rope(x.data(), std::ssize(x) / (kHeads * head_dim), kTokens, kHeads, head_dim,
                  {.theta = 10000.0}, false, 0);
    expect_close(expected, x, kBf16NormError);
  }
}

// ⟨dy, R·x⟩ = ⟨R⁻¹·dy, x⟩: the inverse is the backward pass.
TEST(Rope, TheInverseIsTheBackwardPass) {
  auto backend = make_cpu_backend(2);
  constexpr int64_t kSize = 7 * 2 * 16;
  auto x = random_bf16(1, kSize), dy = random_bf16(2, kSize);
  auto rotated = x, dx = dy;
  backend->rope(rotated.data(), std::ssize(rotated) / (2 * 16), 7, 2, 16, {.theta = 500.0}, false,
                0);
  backend->rope(dx.data(), std::ssize(dx) / (2 * 16), 7, 2, 16, {.theta = 500.0}, true, 0);
  EXPECT_NEAR(dot(doubles(dy), doubles(rotated)), dot(doubles(dx), doubles(x)), 0.05);
  backend->rope(rotated.data(), std::ssize(rotated) / (2 * 16), 7, 2, 16, {.theta = 500.0}, true,
                0);
  expect_close(doubles(x), rotated, 2 * kBf16NormError);
}

TEST(Bias, IsAddedToEveryRowAndItsGradientIsTheSumOfRows) {
  auto backend = make_cpu_backend(2);
  for (int64_t width : {1, 31, 96}) {
    constexpr int64_t kRows = 37;
    auto y = random_bf16(1, kRows * width), bias = random_bf16(2, width),
         dy = random_bf16(3, kRows * width);
    std::vector<float> db = random_floats(4, width);
    Doubles expected_y = doubles(y), expected_db = doubles(db);
    for (int64_t i = 0; i < kRows * width; ++i) {
      expected_y[i] += to_float(bias[i % width]);
      expected_db[i % width] += to_float(dy[i]);
    }
    backend->add_bias(y.data(), kRows, bias, 0);
    backend->bias_backward(dy.data(), kRows, db, 0);
    expect_close(expected_y, y, kBf16NormError);
    expect_close(expected_db, db, 1e-6);
  }
}

// The columns [1, 1 + width) of a matrix whose rows are `stride` apart.
std::vector<bf16> columns(const std::vector<bf16>& x, int64_t width, int64_t stride) {
  std::vector<bf16> found;
  for (size_t at = 1; at < x.size(); at += static_cast<size_t>(stride)) {
    found.insert(found.end(), x.begin() + static_cast<int64_t>(at),
                 x.begin() + static_cast<int64_t>(at) + width);
  }
  return found;
}

TEST(Strides, ColumnsOfAWiderMatrixGiveTheSameBitsAndTheRestStays) {
  auto backend = make_cpu_backend(2);
  constexpr int64_t kRows = 6, kWidth = 24, kStride = 61;
  auto wide = random_bf16(1, kRows * kStride, 3.0f), up_wide = random_bf16(2, kRows * kStride);
  auto x = columns(wide, kWidth, kStride), up = columns(up_wide, kWidth, kStride);
  auto bias = random_bf16(3, kWidth), dy = random_bf16(4, kRows * kWidth);
  auto expect_columns = [&](const std::vector<bf16>& changed, const std::vector<bf16>& dense) {
    EXPECT_EQ(bits_of(columns(changed, kWidth, kStride)), bits_of(dense));
    for (size_t i = 0; i < changed.size(); ++i) {
      size_t column = i % kStride;
      bool outside = column < 1 || column > kWidth;
      ASSERT_TRUE(!outside || changed[i].bits == wide[i].bits) << i;
    }
  };
  auto dense = x, strided = wide;
  backend->add_bias(dense.data(), kRows, bias, 0);
  backend->add_bias(strided.data() + 1, kRows, bias, kStride);
  expect_columns(strided, dense);
  dense = x;
  strided = wide;
  backend->rope(dense.data(), kRows, 3, 2, 12, {.theta = 100.0}, false, 0);
  backend->rope(strided.data() + 1, kRows, 3, 2, 12, {.theta = 100.0}, false, kStride);
  expect_columns(strided, dense);
  std::vector<float> db(kWidth), db_strided(kWidth);
  backend->bias_backward(x.data(), kRows, db, 0);
  backend->bias_backward(wide.data() + 1, kRows, db_strided, kStride);
  EXPECT_EQ(db, db_strided);
  std::vector<bf16> y(x.size()), y_strided(x.size()), dup(x.size());
  backend->swiglu(x.data(), up.data(), kRows, kWidth, 0, y.data());
  backend->swiglu(wide.data() + 1, up_wide.data() + 1, kRows, kWidth, kStride, y_strided.data());
  EXPECT_EQ(bits_of(y), bits_of(y_strided));
  auto dgate_wide = wide, dup_wide = wide;
  backend->swiglu_backward(x.data(), up.data(), dy.data(), kRows, kWidth, 0, y.data(), dup.data(),
                           0);
  backend->swiglu_backward(wide.data() + 1, up_wide.data() + 1, dy.data(), kRows, kWidth, kStride,
                           dgate_wide.data() + 1, dup_wide.data() + 1, kStride);
  expect_columns(dgate_wide, y);
  expect_columns(dup_wide, dup);
}

}  // namespace
}  // namespace gnomon
