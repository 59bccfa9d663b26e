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

// Heads of a wider row: what lies beside them stays as it is.
template <class E>
struct Heads {
  int64_t rows = 5;
  int heads = 3;
  int64_t width = 12, stride = 3 * 12 + 8;
  std::vector<E> x, before, w, dy;
  std::vector<float> rstd, dw;

  explicit Heads(BackendOf<E>& backend) {
    for (float value : random_floats(1, rows * stride, 2.0f)) x.push_back(from_float<E>(value));
    for (float value : random_floats(3, width)) w.push_back(from_float<E>(value));
    for (float value : random_floats(4, rows * stride)) dy.push_back(from_float<E>(value));
    dw = random_floats(5, width);
    before.resize(static_cast<size_t>(rows * heads * width));
    rstd.resize(static_cast<size_t>(rows * heads));
    backend.norm_heads(x.data(), rows, heads, w, kEps, stride, before, rstd);
  }
  void back(BackendOf<E>& backend) {
    backend.norm_heads_backward(before, w, rstd, dy.data(), rows, heads, stride, dw);
  }
  std::vector<E> dense(const std::vector<E>& wide) const {
    std::vector<E> values;
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = wide.begin() + row * stride;
      values.insert(values.end(), first, first + heads * width);
    }
    return values;
  }
  std::vector<E> beside(const std::vector<E>& wide) const {
    std::vector<E> values;
    for (int64_t row = 0; row < rows; ++row) {
      values.insert(values.end(), wide.begin() + row * stride + heads * width,
                    wide.begin() + (row + 1) * stride);
    }
    return values;
  }
};

TEST(NormHeads, NormsEachHeadAndEqualsFiniteDifferences) {
  auto backend = make_cpu_backend<float>(2);
  Heads<float> test(*backend);
  const std::vector<float> all = random_floats(1, test.rows * test.stride, 2.0f),
                           dy = random_floats(4, test.rows * test.stride);
  EXPECT_EQ(test.before, test.dense(all));
  EXPECT_EQ(test.beside(test.x), test.beside(all));
  Doubles x64 = doubles(test.before), w64 = doubles(test.w), dy64 = doubles(test.dense(dy));
  expect_close(reference_norm(x64, w64), test.dense(test.x), 1e-6);

  Doubles dw_expected = doubles(test.dw);
  test.back(*backend);
  auto loss = [&] { return dot(dy64, reference_norm(x64, w64)); };
  const Doubles dw_found = finite_differences(loss, w64);
  for (size_t i = 0; i < dw_found.size(); ++i) dw_expected[i] += dw_found[i];
  expect_close(dw_expected, test.dw, 1e-5);
  expect_close(finite_differences(loss, x64), test.dense(test.dy), 1e-5);
  EXPECT_EQ(test.beside(test.dy), test.beside(dy));
}

TEST(NormHeads, IsTheNormOfDenseRows) {
  auto backend = make_cpu_backend(2);
  Heads<bf16> test(*backend);
  std::vector<bf16> y(test.before.size()), d_before(y.size());
  std::vector<float> rstd(test.rstd.size()), dw = test.dw;
  backend->add_rms_norm(test.before, {}, test.w, kEps, test.before, y, rstd);
  EXPECT_EQ(bits_of(test.dense(test.x)), bits_of(y));
  backend->rms_norm_backward(test.before, test.w, rstd, test.dense(test.dy), d_before, dw);
  test.back(*backend);
  expect_close(doubles(d_before), test.dense(test.dy), 1e-4);
  expect_close(doubles(dw), test.dw, 1e-6);
}

}  // namespace
}  // namespace gnomon
