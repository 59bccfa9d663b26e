#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "kernels/backend.h"
#include "kernels/cpu/ops.h"
#include "numerics/scales.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

double element(const Doubles& x, bool transposed, int64_t row, int64_t column, int64_t rows,
               int64_t columns) {
  return transposed ? x[column * rows + row] : x[row * columns + column];
}

// op(A)·op(B), and the same of the absolute values, which bounds the rounding of any summation
// order.
struct Product {
  Doubles value;
  Doubles magnitude;
};
Product reference_product(const GemmShape& shape, const Doubles& a, const Doubles& b) {
  Product product;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (int64_t l = 0; l < shape.k; ++l) {
        double term = element(a, shape.transpose_a, i, l, shape.m, shape.k) *
                      element(b, shape.transpose_b, l, j, shape.k, shape.n);
        sum += term;
        magnitude += std::fabs(term);
      }
      product.value.push_back(sum);
      product.magnitude.push_back(magnitude);
    }
  }
  return product;
}

std::vector<GemmShape> shapes() {
  std::vector<GemmShape> shapes;
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                             {3, 5, 7},
                             {64, 32, 48},
                             {33, 65, 129},
                             {130, 1, 17},
                             {1, 130, 300},
                             {257, 40, 96},
                             {13, 200, 64},
                             {70, 100, 2100}}) {
        shapes.push_back({m, n, k, transpose_a, transpose_b});
      }
    }
  }
  return shapes;
}

std::string describe(const GemmShape& shape) {
  return std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k) +
         (shape.transpose_a ? " T" : " N") + (shape.transpose_b ? "T" : "N");
}

TEST(Gemm, EqualsTheReferenceInEveryLayoutAndSize) {
  auto backend = make_cpu_backend(2);
  for (const GemmShape& shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    auto a = random_bf16(1, shape.m * shape.k);
    auto b = random_bf16(2, shape.k * shape.n);
    Doubles expected = reference_product(shape, doubles(a), doubles(b)).value;
    std::vector<float> c(expected.size(), std::numeric_limits<float>::quiet_NaN());
    backend->gemm(shape, 1.0f, a.data(), b.data(), c.data(), false);
    expect_close(expected, c, 1e-5);
    std::vector<bf16> rounded(expected.size(), to_bf16(std::numeric_limits<float>::quiet_NaN()));
    backend->gemm(shape, 1.0f, a.data(), b.data(), rounded.data());
    for (size_t i = 0; i < c.size(); ++i) {
      EXPECT_NEAR(to_float(rounded[i]), expected[i], std::fabs(expected[i]) * 0x1.1p-8 + 1e-5);
    }
  }
}

TEST(Gemm, AlphaScalesTheProductOnly) {
  auto backend = make_cpu_backend(2);
  for (const GemmShape& shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    auto a = random_bf16(3, shape.m * shape.k);
    auto b = random_bf16(4, shape.k * shape.n);
    std::vector<float> c = random_floats(5, shape.m * shape.n, 4.0f);
    Doubles expected = reference_product(shape, doubles(a), doubles(b)).value;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = c[i] - 0.375 * expected[i];
    backend->gemm(shape, -0.375f, a.data(), b.data(), c.data(), true);
    expect_close(expected, c, 1e-5);
  }
}

TEST(Gemm, AlphaMayChangeBetweenCallsOfOneShape) {
  auto backend = make_cpu_backend(2);
  GemmShape shape{40, 24, 32, false, true};
  auto a = random_bf16(3, shape.m * shape.k);
  auto b = random_bf16(4, shape.k * shape.n);
  Doubles product = reference_product(shape, doubles(a), doubles(b)).value;
  for (float alpha : {1.0f, 0x1p-40f, 3.0f, 1e20f}) {
    std::vector<float> c(product.size());
    backend->gemm(shape, alpha, a.data(), b.data(), c.data(), false);
    Doubles expected = product;
    for (double& value : expected) value *= alpha;
    expect_close(expected, c, 1e-5);
    std::vector<bf16> rounded(product.size());
    backend->gemm(shape, alpha, a.data(), b.data(), rounded.data());
    expect_close(expected, rounded, kBf16NormError);
  }
}

TEST(Gemm, EachColumnHasItsOwnAlpha) {
  cpu::GemmCache gemms(2);
  for (GemmShape shape : {GemmShape{70, 96, 48, false, true}, {300, 16384, 3, false, true}}) {
    auto a = random_bf16(3, shape.m * shape.k), b = random_bf16(4, shape.k * shape.n);
    std::vector<float> alphas = random_floats(5, shape.n, 2.0f);
    Doubles expected = reference_product(shape, doubles(a), doubles(b)).value;
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] *= static_cast<double>(alphas[i % alphas.size()]);
    }
    std::vector<bf16> c(expected.size());
    gemms.run(shape, alphas, a.data(), b.data(), c.data(), false);
    expect_close(expected, c, kBf16NormError);
  }
}

// Two operands side by side are read as one matrix, each with the scale of its own.
TEST(Gemm, OperandsSideBySideHaveAScaleEach) {
  auto backend = make_cpu_backend(2);
  constexpr int64_t kM = 70, kK = 48, kFirst = 32, kSecond = 64;
  const auto a = random_bf16(3, kM * kK), w = random_bf16(4, (kFirst + kSecond) * kK);
  std::vector<bf16> larger(w.begin() + kFirst * kK, w.end());
  for (bf16& value : larger) value = to_bf16(to_float(value) * 37);
  Rounding rounding;
  rounding.quantises = true;
  rounding.quantizer = {Format::kE4m3, {}, ScaleRule::kFp32};
  std::vector<std::byte> room((kFirst + kSecond) * kK * OperandRoom::kBytesPerElement);
  OwnOperand<bf16> left(host_memory()), first(host_memory()), second(host_memory());
  const auto ready = [&](OwnOperand<bf16>& own, std::span<const bf16> content, int64_t rows,
                         std::optional<int64_t> before) -> const GemmOperand<bf16>& {
    GemmOperand<bf16>& operand = own.of(content);
    if (before) operand.room = {room.data(), *before, (kFirst + kSecond) * kK};
    backend->amax(content, operand.scalars + kAmax);
    backend->quantize(operand, rows, kK, rounding, kAsStored);
    return operand;
  };
  const GemmOperand<bf16>& x = ready(left, a, kM, std::nullopt);
  const GemmOperand<bf16>* parts[] = {&ready(first, std::span(w).first(kFirst * kK), kFirst, 0),
                                      &ready(second, larger, kSecond, kFirst * kK)};
  std::vector<bf16> together(kM * (kFirst + kSecond)), apart(kM * kFirst), of_second(kM * kSecond);
  backend->gemm({kM, kFirst + kSecond, kK, false, true}, {}, x, parts, together.data());
  backend->gemm({kM, kFirst, kK, false, true}, {}, x, std::span(parts).first(1), apart.data());
  backend->gemm({kM, kSecond, kK, false, true}, {}, x, std::span(parts).last(1), of_second.data());
  EXPECT_NE(parts[0]->scalars[kScale], parts[1]->scalars[kScale]);
  // Libraries choose their kernels by the shape, so bits may differ; a scale of the other would be
  // far off.
  std::vector<bf16> together_first, together_second;
  for (int64_t row = 0; row < kM; ++row) {
    const auto begin = together.begin() + row * (kFirst + kSecond);
    together_first.insert(together_first.end(), begin, begin + kFirst);
    together_second.insert(together_second.end(), begin + kFirst, begin + kFirst + kSecond);
  }
  expect_close(doubles(apart), together_first, kBf16NormError);
  expect_close(doubles(of_second), together_second, kBf16NormError);
}

// Columns of a wider matrix, on either side.
TEST(Gemm, StridesReachIntoWiderMatrices) {
  auto backend = make_cpu_backend(2);
  for (GemmShape shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    auto a = random_bf16(1, shape.m * shape.k), b = random_bf16(2, shape.k * shape.n);
    std::vector<float> expected(static_cast<size_t>(shape.m * shape.n));
    backend->gemm(shape, 0.5f, a.data(), b.data(), expected.data(), false);
    auto widen = [](const std::vector<bf16>& x, int64_t width, int64_t stride) {
      std::vector<bf16> wide(x.size() / width * stride, to_bf16(99.0f));
      for (size_t i = 0; i < x.size(); ++i) wide[i / width * stride + i % width] = x[i];
      return wide;
    };
    int64_t width_a = shape.transpose_a ? shape.m : shape.k;
    int64_t width_b = shape.transpose_b ? shape.k : shape.n;
    GemmShape strided = shape;
    strided.stride_a = width_a + 3;
    strided.stride_b = width_b + 5;
    strided.stride_c = shape.n + 7;
    auto wide_a = widen(a, width_a, strided.stride_a), wide_b = widen(b, width_b, strided.stride_b);
    std::vector<float> c(static_cast<size_t>(shape.m * strided.stride_c), -7.0f);
    backend->gemm(strided, 0.5f, wide_a.data(), wide_b.data(), c.data(), false);
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < strided.stride_c; ++j) {
        float wanted = j < shape.n ? expected[i * shape.n + j] : -7.0f;
        ASSERT_NEAR(c[i * strided.stride_c + j], wanted, 1e-5f * std::fabs(wanted) + 1e-5f);
      }
    }
  }
}

// More rows than one piece of the FP32 sums holds, and a last piece that is smaller.
TEST(Gemm, TallBf16OutputsAreWholeAtEveryPieceBoundary) {
  auto backend = make_cpu_backend(2);
  for (bool transpose_a : {false, true}) {
    GemmShape shape{301, 16384, 3, transpose_a, true};
    auto a = random_bf16(6, shape.m * shape.k);
    auto b = random_bf16(7, shape.k * shape.n);
    std::vector<bf16> c(static_cast<size_t>(shape.m * shape.n));
    backend->gemm(shape, 2.0f, a.data(), b.data(), c.data());
    Doubles expected = reference_product(shape, doubles(a), doubles(b)).value;
    for (double& value : expected) value *= 2.0;
    expect_close(expected, c, kBf16NormError);
  }
}

TEST(Gemm, NonFiniteInputsReachTheOutput) {
  auto backend = make_cpu_backend(2);
  GemmShape shape{16, 16, 16, false, false};
  auto a = random_bf16(1, 256);
  auto b = random_bf16(2, 256);
  a[16 * 3 + 5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  std::vector<bf16> c(256);
  backend->gemm(shape, 1.0f, a.data(), b.data(), c.data());
  for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(std::isnan(to_float(c[i])), i / 16 == 3) << i;
}

// An FP8 product is exact in FP32, so only the order of the sum may differ from the dot product of
// the values.
TEST(Gemm, Fp8EmulationIsTheDotProductOfTheDecodedValues) {
  auto backend = make_cpu_backend(2);
  for (auto [format_a, format_b] :
       {std::pair{Format::kE4m3, Format::kE4m3}, {Format::kE5m2, Format::kE4m3}}) {
    GemmShape shape{67, 45, 1000, false, true};
    auto a = random_bf16(8, shape.m * shape.k, 0.02f);
    auto b = random_bf16(9, shape.k * shape.n, 5.0f);
    float scale_a = current_scale(cpu::amax(2, a), format_a);
    float scale_b = current_scale(cpu::amax(2, b), format_b);
    Doubles decoded_a, decoded_b;
    for (bf16 x : a) decoded_a.push_back(decode(format_a, encode(format_a, to_float(x) * scale_a)));
    for (bf16 x : b) decoded_b.push_back(decode(format_b, encode(format_b, to_float(x) * scale_b)));
    cpu::quantize(2, a, format_a, scale_a, a);
    cpu::quantize(2, b, format_b, scale_b, b);
    float alpha = 1.0f / (scale_a * scale_b);
    std::vector<float> c(static_cast<size_t>(shape.m * shape.n));
    backend->gemm(shape, alpha, a.data(), b.data(), c.data(), false);
    Product product = reference_product(shape, decoded_a, decoded_b);
    for (size_t i = 0; i < c.size(); ++i) {
      double bound = 0x1p-23 * std::sqrt(1000.0) * product.magnitude[i] * alpha;
      ASSERT_NEAR(c[i], product.value[i] * alpha, bound) << i;
    }
  }
}

TEST(CpuBackend, SaysWhatItRunsOn) {
  auto backend = make_cpu_backend(2);
  EXPECT_EQ(backend->name(), "cpu");
  EXPECT_EQ(backend->threads(), 2);
  EXPECT_NE(backend->device().find('('), std::string::npos);
  EXPECT_TRUE(backend->libraries().starts_with("oneDNN 2.")) << backend->libraries();
  EXPECT_THROW(make_cpu_backend(0), Error);
}

}  // namespace
}  // namespace gnomon
