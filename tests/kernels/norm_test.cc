#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

constexpr float kEps = 1e-5f;

struct NormCase {
  int64_t rows, width;
};
const std::vector<NormCase> kCases = {{1, 1}, {3, 7}, {5, 64}, {17, 33}, {8, 320}, {2, 1027}};

TEST(AddRmsNorm, AddsToTheResidualAndNormalisesIt) {
  auto backend = make_cpu_backend(2);
  for (auto [rows, width] : kCases) {
    SCOPED_TRACE(width);
    auto residual = random_bf16(1, rows * width, 2.0f);
    auto x = random_bf16(2, rows * width, 2.0f);
    auto w = random_bf16(3, width);
    std::vector<bf16> sum;
    for (size_t i = 0; i < x.size(); ++i)
      sum.push_back(to_bf16(to_float(residual[i]) + to_float(x[i])));
    std::vector<bf16> y(x.size());
    std::vector<float> rstd(static_cast<size_t>(rows));
    backend->add_rms_norm(residual, x, w, kEps, residual, y, rstd);
    EXPECT_EQ(bits_of(residual), bits_of(sum));
    expect_close(reference_norm(doubles(sum), doubles(w)), y, width == 1 ? 4e-3 : kBf16NormError);
    for (int64_t row = 0; row < rows; ++row) {
      double squares = 0.0;
      for (int64_t i = 0; i < width; ++i) squares += std::pow(to_float(sum[row * width + i]), 2);
      EXPECT_NEAR(rstd[row] * std::sqrt(squares / static_cast<double>(width) + kEps), 1.0, 1e-5);
    }
  }
}

TEST(AddRmsNorm, WithoutAnAdditionTheResidualStaysAsItIs) {
  auto backend = make_cpu_backend(2);
  auto residual = random_bf16(1, 4 * 48);
  auto before = residual;
  auto w = random_bf16(3, 48);
  std::vector<bf16> y(residual.size());
  std::vector<float> rstd(4);
  backend->add_rms_norm(residual, {}, w, kEps, residual, y, rstd);
  EXPECT_EQ(bits_of(residual), bits_of(before));
  expect_close(reference_norm(doubles(before), doubles(w)), y, kBf16NormError);
}

TEST(AddRmsNorm, ARowOfZerosGivesZeros) {
  auto backend = make_cpu_backend(2);
  std::vector<bf16> residual(64), y(64, to_bf16(1.0f));
  auto w = random_bf16(3, 64);
  std::vector<float> rstd(1);
  backend->add_rms_norm(residual, {}, w, kEps, residual, y, rstd);
  for (bf16 value : y) EXPECT_EQ(to_float(value), 0.0f);
}

TEST(RmsNormBackward, EqualsFiniteDifferencesAndAccumulates) {
  auto backend = make_cpu_backend(2);
  for (auto [rows, width] : kCases) {
    SCOPED_TRACE(width);
    auto residual = random_bf16(1, rows * width, 2.0f);
    auto w = random_bf16(3, width);
    auto dy = random_bf16(4, rows * width);
    std::vector<bf16> y(residual.size());
    std::vector<float> rstd(static_cast<size_t>(rows));
    backend->add_rms_norm(residual, {}, w, kEps, residual, y, rstd);
    std::vector<bf16> d_residual(residual.size());
    std::vector<float> dw = random_floats(5, width);
    Doubles dw_before = doubles(dw);
    backend->rms_norm_backward(residual, w, rstd, dy, d_residual, dw);

    Doubles x64 = doubles(residual), w64 = doubles(w), dy64 = doubles(dy);
    auto loss = [&] { return dot(dy64, reference_norm(x64, w64)); };
    Doubles dw_expected = finite_differences(loss, w64);
    for (size_t i = 0; i < dw_expected.size(); ++i) dw_expected[i] += dw_before[i];
    expect_close(dw_expected, dw, 1e-5);
    if (width == 1) continue;  // the gradient is all but zero there
    expect_close(finite_differences(loss, x64), d_residual, kBf16NormError);
  }
}

TEST(RmsNormBackward, AddsToTheGradientThatIsThere) {
  auto backend = make_cpu_backend(2);
  auto residual = random_bf16(1, 6 * 40);
  auto w = random_bf16(3, 40);
  auto dy = random_bf16(4, 6 * 40);
  std::vector<bf16> y(residual.size()), alone(residual.size());
  std::vector<float> rstd(6), dw(40);
  backend->add_rms_norm(residual, {}, w, kEps, residual, y, rstd);
  backend->rms_norm_backward(residual, w, rstd, dy, alone, dw);
  auto before = random_bf16(7, 6 * 40, 8.0f);
  auto added = before;
  backend->rms_norm_backward(residual, w, rstd, dy, added, dw);
  for (size_t i = 0; i < added.size(); ++i) {
    EXPECT_NEAR(to_float(added[i]), to_float(before[i]) + to_float(alone[i]), 0.04f);
  }
}

}  // namespace
}  // namespace gnomon
