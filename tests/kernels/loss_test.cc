#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

double reference_loss(std::span<const double> logits, int32_t target) {
  double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (double logit : logits) sum += std::exp(logit - largest);
  return std::log(sum) + largest - logits[target];
}

std::vector<int32_t> targets_for(int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < rows; ++row) {
    targets.push_back(
        static_cast<int32_t>(philox(11, 0, static_cast<uint64_t>(row))[0] % vocabulary));
  }
  return targets;
}

TEST(CrossEntropy, LossAndGradientEqualTheReference) {
  auto backend = make_cpu_backend(2);
  for (int64_t vocabulary : {2, 17, 256, 2049}) {
    constexpr int64_t kRows = 9;
    auto logits = random_bf16(1, kRows * vocabulary, 12.0f);
    auto targets = targets_for(kRows, vocabulary);
    Doubles x = doubles(logits);
    std::vector<float> losses(kRows);
    backend->cross_entropy(logits, targets, vocabulary, 0.25f, true, losses);
    Doubles expected_losses, expected_gradient;
    for (int64_t row = 0; row < kRows; ++row) {
      std::span<double> values(x.data() + row * vocabulary, static_cast<size_t>(vocabulary));
      expected_losses.push_back(reference_loss(values, targets[row]));
      for (int64_t i = 0; i < vocabulary; ++i) {
        double probability = std::exp(-reference_loss(values, static_cast<int32_t>(i)));
        expected_gradient.push_back(0.25 * (probability - (i == targets[row] ? 1.0 : 0.0)));
      }
    }
    expect_close(expected_losses, losses, 1e-6);
    expect_close(expected_gradient, logits, kBf16NormError);
  }
}

TEST(CrossEntropy, TheGradientEqualsFiniteDifferences) {
  auto backend = make_cpu_backend(2);
  constexpr int64_t kVocabulary = 37;
  auto logits = random_bf16(1, kVocabulary, 4.0f);
  Doubles x = doubles(logits);
  std::vector<int32_t> targets = {5};
  std::vector<float> losses(1);
  backend->cross_entropy(logits, targets, kVocabulary, 3.0f, true, losses);
  expect_close(finite_differences([&] { return 3.0 * reference_loss(x, 5); }, x), logits,
               kBf16NormError);
}

TEST(CrossEntropy, WithoutGradientTheLogitsStay) {
  auto backend = make_cpu_backend(2);
  auto logits = random_bf16(1, 3 * 50, 4.0f);
  auto before = logits;
  std::vector<int32_t> targets = {1, 49, 0};
  std::vector<float> with(3), without(3);
  backend->cross_entropy(logits, targets, 50, 1.0f, false, without);
  EXPECT_EQ(bits_of(logits), bits_of(before));
  backend->cross_entropy(logits, targets, 50, 1.0f, true, with);
  EXPECT_EQ(with, without);
}

TEST(CrossEntropy, IgnoredTargetsHaveNoLossAndNoGradient) {
  auto backend = make_cpu_backend(2);
  auto logits = random_bf16(1, 4 * 20, 4.0f);
  auto before = logits;
  std::vector<int32_t> targets = {3, -1, 7, -1};
  std::vector<float> losses(4, 9.0f);
  backend->cross_entropy(logits, targets, 20, 1.0f, true, losses);
  for (int64_t row : {1, 3}) {
    EXPECT_EQ(losses[row], 0.0f);
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(logits[row * 20 + i].bits, 0);
  }
  EXPECT_GT(losses[0], 0.0f);
  EXPECT_LT(to_float(logits[3]), 0.0f);
}

TEST(CrossEntropy, HugeLogitsAreStableAndNonFiniteOnesAreSeen) {
  auto backend = make_cpu_backend(2);
  std::vector<bf16> logits(3 * 33, to_bf16(-3e38f));
  logits[4] = to_bf16(3e38f);
  logits[33 + 1] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  logits[66 + 2] = to_bf16(std::numeric_limits<float>::infinity());
  std::vector<int32_t> targets = {4, 5, 6};
  std::vector<float> losses(3);
  backend->cross_entropy(logits, targets, 33, 1.0f, true, losses);
  EXPECT_NEAR(losses[0], 0.0f, 1e-6f);
  EXPECT_FALSE(std::isfinite(losses[1]));
  EXPECT_FALSE(std::isfinite(losses[2]));
  EXPECT_TRUE(std::isnan(to_float(logits[33])));
}

TEST(CrossEntropyDeathTest, ATargetOutsideTheVocabularyIsOurBug) {
  auto backend = make_cpu_backend(1);
  std::vector<bf16> logits(20);
  std::vector<int32_t> targets = {20};
  std::vector<float> losses(1);
  EXPECT_DEATH(backend->cross_entropy(logits, targets, 20, 1.0f, true, losses), "targets");
}

TEST(Embed, TakesTheRowsOfTheTokens) {
  auto backend = make_cpu_backend(2);
  constexpr int64_t kWidth = 19;
  auto table = random_bf16(1, 10 * kWidth);
  std::vector<int32_t> tokens = {9, 0, 3, 3, 1};
  std::vector<bf16> y(5 * kWidth);
  backend->embed(tokens, table, kWidth, y);
  for (int64_t i = 0; i < 5 * kWidth; ++i) {
    EXPECT_EQ(y[i].bits, table[tokens[i / kWidth] * kWidth + i % kWidth].bits);
  }
}

TEST(EmbedBackward, AddsTheGradientsOfRepeatedTokens) {
  for (int threads : {1, 2, 3}) {
    auto backend = make_cpu_backend(threads);
    constexpr int64_t kWidth = 35;
    std::vector<int32_t> tokens = {9, 0, 3, 3, 1, 3};
    auto dy = random_bf16(1, 6 * kWidth);
    std::vector<float> table = random_floats(2, 10 * kWidth);
    Doubles expected = doubles(table);
    for (int64_t i = 0; i < 6 * kWidth; ++i)
      expected[tokens[i / kWidth] * kWidth + i % kWidth] += to_float(dy[i]);
    backend->embed_backward(tokens, dy, kWidth, table);
    expect_close(expected, table, 1e-6);
  }
}

}  // namespace
}  // namespace gnomon
