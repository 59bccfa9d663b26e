// The FP64 reference is itself right: its gradients agree with central differences of its loss.
#include "tests/engine/reference_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/parameters.h"

namespace gnomon::test {
namespace {

struct ReferenceShape {
  const char* name;
  int kv_heads;
  bool bias;
  bool tied;
  bool qk_norm = false;
};

class FiniteDifferences : public testing::TestWithParam<ReferenceShape> {};

TEST_P(FiniteDifferences, AgreeWithEveryParametersGradient) {
  ModelConfig config = small_model();
  config.width = 16;
  config.ffn = 20;
  config.vocabulary = 23;
  config.kv_heads = GetParam().kv_heads;
  config.qkv_bias = GetParam().bias;
  config.tie_embeddings = GetParam().tied;
  config.qk_norm = GetParam().qk_norm;
  ReferenceModel model(config);
  ParameterLayout layout(config);
  uint64_t stream = 0;
  for (const Parameter& parameter : layout.all()) {
    Vector& values = model.weights[parameter.name];
    ++stream;
    for (int64_t i = 0; i < parameter.size; ++i) {
      float uniform = philox_uniform(philox(11, stream, static_cast<uint64_t>(i))[0]);
      values.push_back(0.8 * (static_cast<double>(uniform) - 0.5) +
                       (parameter.name.ends_with("norm.weight") ? 1.0 : 0.0));
    }
  }
  std::vector<int32_t> tokens, targets;
  for (uint32_t token : uniform_tokens(5, config.vocabulary, 12))
    tokens.push_back(static_cast<int32_t>(token));
  for (uint32_t token : uniform_tokens(6, config.vocabulary, 12))
    targets.push_back(static_cast<int32_t>(token));
  model.forward_backward(tokens, targets, 6, 1.0);
  auto gradients = model.gradients;

  for (const Parameter& parameter : layout.all()) {
    Vector& values = model.weights[parameter.name];
    for (size_t probe = 0; probe < 6; ++probe) {
      size_t i = philox(12, probe, values.size())[0] % values.size();
      double before = values[i];
      double h = 1e-5;
      values[i] = before + h;
      double above = model.loss(tokens, targets, 6);
      values[i] = before - h;
      double below = model.loss(tokens, targets, 6);
      values[i] = before;
      double difference = (above - below) / (2 * h);
      double expected = gradients[parameter.name][i];
      EXPECT_NEAR(difference, expected, 1e-7 + 1e-6 * std::abs(expected))
          << parameter.name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FiniteDifferences,
                         testing::Values(ReferenceShape{"TiedGrouped", 2, false, true},
                                         ReferenceShape{"UntiedBias", 4, true, false},
                                         ReferenceShape{"OneKeyHeadBias", 1, true, true},
                                         ReferenceShape{"NormOfHeads", 2, false, true, true}),
                         [](const auto& instance) { return instance.param.name; });

TEST(RoundToGrid, RoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(round_to_grid(1.0625, 3, -6, 448), 1.0);   // tie to even
  EXPECT_EQ(round_to_grid(1.1875, 3, -6, 448), 1.25);  // tie to even
  EXPECT_EQ(round_to_grid(-1000, 3, -6, 448), -448.0);
  EXPECT_EQ(round_to_grid(std::ldexp(1, -10), 3, -6, 448), 0.0);
  EXPECT_EQ(round_to_grid(1.01 * std::ldexp(1, -10), 3, -6, 448), std::ldexp(1, -9));
  EXPECT_EQ(round_bf16(1.00390625), 1.0);
}

}  // namespace
}  // namespace gnomon::test
