// The device's layers, on a device or by emulation on the CPU, against the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/norm.h"
#include "tests/kernels/device_support.h"
#include "tests/kernels/reference.h"

namespace gnomon::cuda {
namespace {

using test::changed, test::device_stream, test::given, test::OnDevice;

// Norm of the difference over the norm.
template <class T>
double relative_error(const std::vector<T>& found, const std::vector<T>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<double>(to_float(expected[i]));
    const double d = static_cast<double>(to_float(found[i])) - e;
    difference += d * d;
    size += e * e;
  }
  return std::sqrt(difference / size);
}

// Where two roundings to BF16 may fall to either side now and then.
constexpr double kBf16 = 1e-3;
constexpr double kFp32 = 1e-5;

// What an operation says of the largest magnitude of what it made.
float amax_of(const std::vector<bf16>& x) { return cpu::amax(1, x); }

class CudaNorm : public testing::TestWithParam<int64_t> {};

TEST_P(CudaNorm, ForwardAndBackwardAreTheCpus) {
  const int64_t width = GetParam(), rows = 5;
  const auto size = static_cast<size_t>(rows * width);
  const std::vector<bf16> residual = random_bf16(1, rows * width), x = random_bf16(2, rows * width);
  const std::vector<bf16> w = random_bf16(3, width), dy = random_bf16(4, rows * width);
  for (bool adds : {true, false}) {
    std::vector<bf16> sum(size), y(size), cpu_sum(size), cpu_y(size);
    std::vector<float> rstd(rows), cpu_rstd(rows);
    const auto update = given(x);
    float amax = 1e9f;  // of another tensor
    add_rms_norm(given(residual), adds ? static_cast<const bf16*>(update) : nullptr, given(w),
                 1e-5f, rows, width, changed(sum), changed(y), changed(rstd), changed(amax),
                 device_stream());
    EXPECT_EQ(amax, amax_of(y));
    cpu::add_rms_norm<bf16>(1, residual, adds ? std::span<const bf16>(x) : std::span<const bf16>(),
                            w, 1e-5f, cpu_sum, cpu_y, cpu_rstd);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(sum[i].bits, cpu_sum[i].bits) << i;
    EXPECT_LT(relative_error(y, cpu_y), kBf16);
    EXPECT_LT(relative_error(rstd, cpu_rstd), kFp32);
    std::vector<bf16> d_residual = random_bf16(5, rows * width), cpu_d = d_residual;
    std::vector<float> dw(static_cast<size_t>(width), 0.5f), cpu_dw = dw;
    std::vector<float> scratch(static_cast<size_t>(rms_norm_scratch(rows, width)), NAN);
    std::vector<float> partials(static_cast<size_t>(width));
    rms_norm_backward(given(cpu_sum), given(w), given(cpu_rstd), given(dy), rows, width,
                      changed(d_residual), changed(dw), changed(scratch), changed(amax),
                      device_stream());
    EXPECT_EQ(amax, amax_of(d_residual));
    cpu::rms_norm_backward<bf16>(1, cpu_sum, w, cpu_rstd, dy, cpu_d, cpu_dw, partials);
    EXPECT_LT(relative_error(d_residual, cpu_d), kBf16);
    EXPECT_LT(relative_error(dw, cpu_dw), kFp32);
  }
}
INSTANTIATE_TEST_SUITE_P(Widths, CudaNorm, testing::Values(8, 64, 1000, 2048, 2056, 5000, 12288));

TEST(CudaNormInPlace, TheSumMayBeTheResidual) {
  std::vector<bf16> residual = random_bf16(1, 3 * 64), x = random_bf16(2, 3 * 64), y(3 * 64);
  const std::vector<bf16> w = random_bf16(3, 64), before = residual;
  std::vector<float> rstd(3);
  OnDevice<bf16> in_place(residual);
  add_rms_norm(in_place.data(), given(x), given(w), 1e-5f, 3, 64, in_place.data(), changed(y),
               changed(rstd), nullptr, device_stream());
  in_place.read(residual);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(residual[i].bits, to_bf16(to_float(before[i]) + to_float(x[i])).bits);
  }
}

class CudaHeads : public testing::TestWithParam<int64_t> {};

TEST_P(CudaHeads, NormAndItsGradientAreTheCpus) {
  const int64_t width = GetParam(), rows = 450;  // more heads than warps run at once
  constexpr int kHeads = 12;
  const int64_t stride = kHeads * width + 16, count = rows * kHeads;
  const std::vector<bf16> w = random_bf16(3, width);
  std::vector<bf16> x = random_bf16(1, rows * stride, 3.0f), cpu_x = x;
  std::vector<bf16> before(static_cast<size_t>(count * width)), cpu_before = before;
  std::vector<float> rstd(static_cast<size_t>(count)), cpu_rstd = rstd;
  norm_heads(changed(x), rows, kHeads, given(w), width, 1e-5f, stride, changed(before),
             changed(rstd), device_stream());
  cpu::norm_heads<bf16>(1, cpu_x.data(), rows, kHeads, w, 1e-5f, stride, cpu_before, cpu_rstd);
  for (size_t i = 0; i < before.size(); ++i) ASSERT_EQ(before[i].bits, cpu_before[i].bits) << i;
  EXPECT_LT(relative_error(x, cpu_x), kBf16);
  EXPECT_LT(relative_error(rstd, cpu_rstd), kFp32);

  std::vector<bf16> dy = random_bf16(4, rows * stride), cpu_dy = dy;
  std::vector<float> dw(static_cast<size_t>(width), 0.5f), cpu_dw = dw;
  std::vector<float> scratch(static_cast<size_t>(norm_heads_scratch(count, width)), NAN);
  std::vector<float> partials(static_cast<size_t>(width));
  norm_heads_backward(given(cpu_before), given(w), given(cpu_rstd), changed(dy), rows, kHeads,
                      width, stride, changed(dw), changed(scratch), device_stream());
  cpu::norm_heads_backward<bf16>(1, cpu_before, w, cpu_rstd, cpu_dy.data(), rows, kHeads, stride,
                                 cpu_dw, partials);
  EXPECT_LT(relative_error(dy, cpu_dy), kBf16);
  EXPECT_LT(relative_error(dw, cpu_dw), kFp32);
}
INSTANTIATE_TEST_SUITE_P(Widths, CudaHeads, testing::Values(8, 24, 64, 128, 256));

TEST(CudaElementwise, BiasAndItsGradientAreTheCpus) {
  constexpr int64_t kRows = 300, kWidth = 24, kStride = 40;
  std::vector<bf16> y = random_bf16(1, kRows * kStride), cpu_y = y;
  const std::vector<bf16> bias = random_bf16(2, kWidth);
  add_bias(changed(y), kRows, given(bias), kWidth, kStride, device_stream());
  cpu::add_bias<bf16>(1, cpu_y.data(), kRows, bias, kStride);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i].bits, cpu_y[i].bits) << i;
  std::vector<float> db(kWidth, 1.0f), cpu_db = db, partials(kWidth);
  std::vector<float> scratch(static_cast<size_t>(bias_scratch(kRows, kWidth)), NAN);
  bias_backward(given(y), kRows, changed(db), kWidth, kStride, changed(scratch), device_stream());
  cpu::bias_backward<bf16>(1, y.data(), kRows, cpu_db, kStride, partials);
  EXPECT_LT(relative_error(db, cpu_db), kFp32);
}

// Heads of 16 and 32 are turned eight pairs at a time, those of 12 one by one.
class CudaRotation : public testing::TestWithParam<int> {};

TEST_P(CudaRotation, IsTheCpus) {
  constexpr int64_t kTokens = 7, kRows = 3 * kTokens, kStride = 128;
  constexpr int kHeads = 3;
  const int kDim = GetParam();
  std::vector<float> angles = random_floats(9, kTokens * kDim / 2, 3.0f), cosines, sines;
  for (float angle : angles) {
    cosines.push_back(std::cos(angle));
    sines.push_back(std::sin(angle));
  }
  for (bool inverse : {false, true}) {
    std::vector<bf16> x = random_bf16(1, kRows * kStride), cpu_x = x;
    rope(changed(x), kRows, kTokens, kHeads, kDim, given(cosines), given(sines), inverse, kStride,
         device_stream());
    cpu::rope<bf16>(1, cpu_x.data(), kRows, kTokens, kHeads, kDim, cosines, sines, inverse,
                    kStride);
    EXPECT_LT(relative_error(x, cpu_x), kBf16);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = kHeads * kDim; i < kStride; ++i) {
        const auto at = static_cast<size_t>(row * kStride + i);
        EXPECT_EQ(x[at].bits, cpu_x[at].bits);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, CudaRotation, testing::Values(12, 16, 32));

TEST(CudaElementwise, SwigluIsTheCpusInPlaceToo) {
  constexpr int64_t kRows = 9, kWidth = 40, kStride = 80;
  std::vector<bf16> both = random_bf16(1, kRows * kStride, 4.0f);
  std::vector<bf16> y(kRows * kWidth), cpu_y = y;
  OnDevice<bf16> in_place(both);
  bf16* const its_gate = in_place.data();
  bf16* const its_up = its_gate + kWidth;
  float amax = 1e9f, amax_gate = 1e9f, amax_up = 1e9f;
  swiglu(its_gate, its_up, kRows, kWidth, kStride, changed(y), changed(amax), device_stream());
  EXPECT_EQ(amax, amax_of(y));
  cpu::swiglu<bf16>(1, both.data(), both.data() + kWidth, kRows, kWidth, kStride, cpu_y.data());
  EXPECT_LT(relative_error(y, cpu_y), kBf16);
  const std::vector<bf16> dy = random_bf16(2, kRows * kWidth);
  std::vector<bf16> cpu_both = both;
  swiglu_backward(its_gate, its_up, given(dy), kRows, kWidth, kStride, its_gate, its_up, kStride,
                  changed(amax_gate), changed(amax_up), device_stream());
  in_place.read(both);
  std::vector<bf16> gate, up;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto begin = both.begin() + row * kStride;
    gate.insert(gate.end(), begin, begin + kWidth);
    up.insert(up.end(), begin + kWidth, begin + 2 * kWidth);
  }
  EXPECT_EQ(amax_gate, amax_of(gate));
  EXPECT_EQ(amax_up, amax_of(up));
  cpu::swiglu_backward<bf16>(1, cpu_both.data(), cpu_both.data() + kWidth, dy.data(), kRows, kWidth,
                             kStride, cpu_both.data(), cpu_both.data() + kWidth, kStride);
  EXPECT_LT(relative_error(both, cpu_both), kBf16);
}

TEST(CudaElementwise, SumsAreRoundedAsBf16Is) {
  const std::vector<float> x = random_floats(1, 1003, 5.0f);
  std::vector<bf16> y(x.size());
  round_sum(given(x), std::ssize(x), changed(y), device_stream());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << i;
}

TEST(CudaEnds, EmbeddingIsTheCpus) {
  constexpr int64_t kWidth = 24, kVocabulary = 11;
  const std::vector<int32_t> tokens = {3, 0, 10, 3, 3, 7, 0, 10, 3};
  const std::vector<bf16> table = random_bf16(1, kVocabulary * kWidth);
  const auto count = std::ssize(tokens);
  std::vector<bf16> y(static_cast<size_t>(count * kWidth)), cpu_y = y;
  embed(given(tokens), count, given(table), kWidth, changed(y), device_stream());
  cpu::embed<bf16>(1, tokens, table, kWidth, cpu_y);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i].bits, cpu_y[i].bits) << i;

  std::vector<int32_t> order(tokens.size()), sorted;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t at) { return tokens[static_cast<size_t>(at)]; });
  for (int32_t at : order) sorted.push_back(tokens[static_cast<size_t>(at)]);
  const std::vector<bf16> dy = random_bf16(2, count * kWidth);
  std::vector<float> dtable = random_floats(3, kVocabulary * kWidth, 1.0f), cpu_dtable = dtable;
  embed_backward(given(sorted), given(order), count, given(dy), kWidth, changed(dtable),
                 device_stream());
  cpu::embed_backward<bf16>(1, tokens, dy, kWidth, cpu_dtable);
  EXPECT_EQ(dtable, cpu_dtable) << "the same order of sums";
}

class CudaLoss : public testing::TestWithParam<int64_t> {};

TEST_P(CudaLoss, AndItsGradientAreTheCpus) {
  const int64_t vocabulary = GetParam();
  const std::vector<int32_t> targets = {0, static_cast<int32_t>(vocabulary - 1), -1, 5};
  const auto rows = std::ssize(targets);
  std::vector<bf16> logits = random_bf16(1, rows * vocabulary, 8.0f), cpu_logits = logits;
  std::vector<float> losses(targets.size(), -1), cpu_losses = losses;
  std::vector<float> room(static_cast<size_t>(vocabulary));
  float amax = 1e9f;
  for (bool with_gradient : {false, true}) {
    cross_entropy(changed(logits), given(targets), rows, vocabulary, 0.25f, with_gradient,
                  changed(losses), changed(amax), device_stream());
    if (with_gradient) {
      EXPECT_EQ(amax, amax_of(logits));
    }
    cpu::cross_entropy<bf16>(1, cpu_logits, targets, vocabulary, 0.25f, with_gradient, cpu_losses,
                             room);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], cpu_losses[i], 1e-5) << i;
    EXPECT_LT(relative_error(logits, cpu_logits), kBf16);
  }
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, CudaLoss, testing::Values(8, 257, 4096, 5000));

TEST(CudaLossOfNan, IsNan) {
  std::vector<bf16> logits = random_bf16(1, 2 * 64, 2.0f);
  logits[20] = to_bf16(NAN);
  const std::vector<int32_t> targets = {3, 4};
  std::vector<float> losses(2);
  float amax = 0;
  cross_entropy(changed(logits), given(targets), 2, 64, 1.0f, true, changed(losses), changed(amax),
                device_stream());
  EXPECT_TRUE(std::isinf(amax)) << "as amax() takes NaN";
  EXPECT_TRUE(std::isnan(losses[0]));
  EXPECT_TRUE(std::isfinite(losses[1]));
}

}  // namespace
}  // namespace gnomon::cuda
