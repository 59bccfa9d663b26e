#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

// Loshchilov & Hutter 2019, algorithm 2, in FP64.
struct AdamwReference {
  Doubles m, v, master;
  void step(const UpdateStep& step, const std::vector<float>& gradient) {
    for (size_t i = 0; i < m.size(); ++i) {
      double g = static_cast<double>(gradient[i]) * step.gradient_scale;
      m[i] = step.beta1 * m[i] + (1.0 - step.beta1) * g;
      v[i] = step.beta2 * v[i] + (1.0 - step.beta2) * g * g;
      double direction =
          m[i] / step.bias_correction1 / (std::sqrt(v[i] / step.bias_correction2) + step.eps);
      master[i] -= step.learning_rate * (direction + step.weight_decay * master[i]);
    }
  }
};

TEST(Adamw, FollowsTheReferenceOverManySteps) {
  auto backend = make_cpu_backend(2);
  constexpr int64_t kSize = 9001;
  std::vector<float> m(kSize), v(kSize), master = random_floats(1, kSize);
  std::vector<bf16> weight(kSize);
  AdamwReference reference{Doubles(kSize), Doubles(kSize), doubles(master)};
  Doubles start = doubles(master);
  for (int t = 1; t <= 10; ++t) {
    auto gradient = random_floats(100 + static_cast<uint64_t>(t), kSize, 3.0f);
    UpdateStep step{.learning_rate = 0.01f,
                    .beta1 = 0.9f,
                    .beta2 = 0.95f,
                    .eps = 1e-8f,
                    .weight_decay = 0.1f,
                    .bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, t)),
                    .bias_correction2 = static_cast<float>(1.0 - std::pow(0.95, t)),
                    .gradient_scale = 0.5f};
    backend->update(step, gradient, {m, v}, master, weight);
    reference.step(step, gradient);
  }
  expect_close(reference.m, m, 1e-6);
  expect_close(reference.v, v, 1e-6);
  Doubles change(kSize), expected_change(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    change[i] = master[i] - start[i];
    expected_change[i] = reference.master[i] - start[i];
    ASSERT_EQ(weight[i].bits, to_bf16(master[i]).bits);
  }
  expect_close(expected_change, change, 1e-5);
}

// In FP64, as analyses use it.
TEST(Adamw, RuleIsTheStepAndItsSlopeTheDerivative) {
  const Adamw<double> rule({.learning_rate = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .weight_decay = 0,
                            .bias_correction1 = 1 - std::pow(0.9, 7),
                            .bias_correction2 = 1 - std::pow(0.95, 7),
                            .gradient_scale = 1});
  const auto step = [&](double g) {
    double m = 0.02, v = 3e-3;
    return rule.step(g, m, v);
  };
  for (double g : {-0.3, 0.0, 0.05, 2.0}) {
    const double mean = (0.9 * 0.02 + 0.1 * g) / (1 - std::pow(0.9, 7));
    const double square = (0.95 * 3e-3 + 0.05 * g * g) / (1 - std::pow(0.95, 7));
    EXPECT_NEAR(step(g), 1e-2 * mean / (std::sqrt(square) + 1e-8), 1e-15);
    EXPECT_NEAR(rule.slope(g, 0.02, 3e-3, 0), (step(g + 1e-5) - step(g - 1e-5)) / 2e-5, 1e-8) << g;
  }
  EXPECT_EQ(rule.slope(0, 0, 0, 0), 0);
  EXPECT_LT(std::abs(rule.slope(1e-9, 0, 0, 0.1)), 1e-2 * 0.2 / 0.1);
}

TEST(SumOfSquares, IsExactToFp64) {
  auto backend = make_cpu_backend(2);
  for (int64_t size : {0, 1, 17, 4096, 50001}) {
    auto x = random_floats(1, size, 100.0f);
    double expected = dot(doubles(x), doubles(x));
    EXPECT_NEAR(backend->sum_of_squares(x), expected, expected * 1e-13);
  }
  std::vector<float> large(3, 1e30f);
  EXPECT_NEAR(backend->sum_of_squares(large) / 3e60, 1.0, 1e-6);
  large[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(backend->sum_of_squares(large)));
}

TEST(Zero, ClearsEverything) {
  auto x = random_floats(1, 10001);
  make_cpu_backend(2)->zero(std::span(x));
  EXPECT_EQ(x, std::vector<float>(10001));
}

}  // namespace
}  // namespace gnomon
