// AdamW, clipping and the learning rate against FP64.
#include "trainer/engine/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/philox.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::test {
namespace {

TEST(LearningRate, WarmsUpLinearlyAndFallsAlongACosine) {
  OptimizerConfig config;
  config.learning_rate = 2e-3;
  config.min_ratio = 0.1;
  config.warmup_steps = 10;
  config.total_steps = 110;
  EXPECT_DOUBLE_EQ(config.at(1), 2e-4);
  EXPECT_DOUBLE_EQ(config.at(5), 1e-3);
  EXPECT_DOUBLE_EQ(config.at(10), 2e-3);
  EXPECT_NEAR(config.at(60), 2e-3 * 0.55, 1e-12);  // half way
  EXPECT_NEAR(config.at(35), 2e-3 * (0.1 + 0.9 * 0.5 * (1 + std::numbers::sqrt2 / 2)), 1e-12);
  EXPECT_NEAR(config.at(110), 2e-4, 1e-12);
  EXPECT_NEAR(config.at(5000), 2e-4, 1e-12);  // stays
}

TEST(LearningRate, NeedsNoWarmUp) {
  OptimizerConfig config;
  config.warmup_steps = 0;
  config.total_steps = 100;
  EXPECT_NEAR(config.at(1), config.learning_rate, 1e-5 * config.learning_rate + 1e-6);
  EXPECT_GT(config.at(1), config.at(2));
}

struct AdamReference {
  double m = 0, v = 0, w = 0;
  void step(const OptimizerConfig& config, int64_t t, double gradient, bool decay) {
    double lr = config.at(t);
    m = config.beta1 * m + (1 - config.beta1) * gradient;
    v = config.beta2 * v + (1 - config.beta2) * gradient * gradient;
    double m_hat = m / (1 - std::pow(config.beta1, static_cast<double>(t)));
    double v_hat = v / (1 - std::pow(config.beta2, static_cast<double>(t)));
    w -= lr * (m_hat / (std::sqrt(v_hat) + config.eps) + (decay ? config.weight_decay : 0.0) * w);
  }
};

class AdamwAgainstFp64 : public testing::TestWithParam<double> {};

TEST_P(AdamwAgainstFp64, EveryParameterFollowsForTwentySteps) {
  ModelConfig model = small_model();
  model.qkv_bias = true;
  ParameterLayout layout(model);
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  OptimizerConfig config;
  config.warmup_steps = 5;
  config.total_steps = 20;
  config.learning_rate = 1e-2;
  config.clip = GetParam();
  Optimizer optimizer(config, layout, *backend);
  size_t count = static_cast<size_t>(layout.elements());
  std::vector<float> gradients(count);
  std::vector<bf16> weights(count);
  std::vector<AdamReference> reference(count);
  for (size_t i = 0; i < count; ++i) {
    optimizer.masters()[i] = philox_uniform(philox(1, 0, i)[0]) - 0.5f;
    reference[i].w = static_cast<double>(optimizer.masters()[i]);
  }
  for (int64_t step = 1; step <= 20; ++step) {
    double squares = 0;
    for (size_t i = 0; i < count; ++i) {
      float unit = philox_uniform(philox(2, static_cast<uint64_t>(step), i)[0]) - 0.5f;
      gradients[i] = unit * std::exp2(static_cast<float>(i % 9) - 10.0f);
      squares += static_cast<double>(gradients[i]) * static_cast<double>(gradients[i]);
    }
    double norm = optimizer.norm(gradients);
    ASSERT_NEAR(norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
    optimizer.update(step, norm, gradients, weights);
    double clip = config.clip > 0 && norm > config.clip ? config.clip / norm : 1.0;
    for (size_t i = 0; i < count; ++i) {
      reference[i].step(config, step, clip * static_cast<double>(gradients[i]),
                        static_cast<int64_t>(i) < layout.decayed());
    }
  }
  auto first = std::get<std::span<float>>(optimizer.moments()[0]);
  auto second = std::get<std::span<float>>(optimizer.moments()[1]);
  for (size_t i = 0; i < count; ++i) {
    double master = static_cast<double>(optimizer.masters()[i]);
    ASSERT_NEAR(master, reference[i].w, 2e-6) << i;
    ASSERT_NEAR(static_cast<double>(first[i]), reference[i].m,
                1e-5 * std::abs(reference[i].m) + 3e-8);
    ASSERT_NEAR(static_cast<double>(second[i]), reference[i].v, 1e-5 * reference[i].v);
    ASSERT_EQ(weights[i].bits, to_bf16(optimizer.masters()[i]).bits);
  }
}

INSTANTIATE_TEST_SUITE_P(Clip, AdamwAgainstFp64, testing::Values(0.0, 0.5, 1e6));

}  // namespace
}  // namespace gnomon::test
