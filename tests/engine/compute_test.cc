// A model of FP32 elements beside one of BF16: both against the FP64 reference without any
// rounding, and FP32 as an engine's way of computing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/philox.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/reference_model.h"
#include "trainer/engine/model.h"

namespace gnomon::test {
namespace {

constexpr int kTokens = 24;
constexpr int kSequences = 3;

struct Agreement {
  double logits = 0;  // ‖a − b‖/‖b‖
  double loss = 0;    // relative
  double cosine = 1;  // the smallest of all gradients but those of k's bias
  double cosine_of_k_bias = 1;
  double gradient_norm = 0;  // the largest |‖a‖/‖b‖ − 1|
};

double inner(std::span<const float> x, const Vector& y) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

// Weights that BF16 cannot hold, in the model and in the reference.
std::vector<float> lively_weights(const ParameterLayout& layout, ReferenceModel& reference) {
  std::vector<float> weights(static_cast<size_t>(layout.elements()));
  for (size_t index = 0; index < layout.all().size(); ++index) {
    const Parameter& parameter = layout.all()[index];
    for (int64_t i = 0; i < parameter.size; ++i) {
      float uniform = philox_uniform(philox(41, index, static_cast<uint64_t>(i))[0]) - 0.5f;
      float value = 0.3f * uniform + (parameter.name.ends_with("norm.weight") ? 1.0f : 0.0f);
      weights[static_cast<size_t>(parameter.offset + i)] = value;
      reference.weights[parameter.name].push_back(static_cast<double>(value));
    }
  }
  return weights;
}

template <class E>
Agreement agreement_of(const ModelConfig& config, int threads) {
  auto backend = make_cpu_backend<E>(threads);
  ScalingState scaling(static_cast<int>(config.sites().size()));
  BasicModel<E> model(config, kSequences, kTokens, *backend, scaling, {});
  ReferenceModel reference(config);
  model.set_weights(lively_weights(model.layout(), reference));
  std::vector<int32_t> tokens, targets;
  for (int i = 0; i < kSequences * kTokens; ++i) {
    auto words = philox(42, 0, static_cast<uint64_t>(i));
    tokens.push_back(static_cast<int32_t>(words[0] % static_cast<uint32_t>(config.vocabulary)));
    targets.push_back(static_cast<int32_t>(words[1] % static_cast<uint32_t>(config.vocabulary)));
  }
  std::vector<SitePrecision> sites(model.sites().size());
  PassPlan pass{.sites = &sites, .step = 1, .record = false};
  double loss = model.forward_backward(pass, tokens, targets, 0.25f, false);
  double expected = reference.forward_backward(tokens, targets, kTokens, 0.25);
  Agreement agreement;
  agreement.loss = std::abs(loss / expected - 1.0);
  double difference = 0, size = 0;
  std::vector<float> logits = model.logits(pass, tokens);
  EXPECT_EQ(logits.size(), reference.logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    difference += std::pow(static_cast<double>(logits[i]) - reference.logits[i], 2);
    size += reference.logits[i] * reference.logits[i];
  }
  agreement.logits = std::sqrt(difference / size);
  for (size_t index = 0; index < model.layout().all().size(); ++index) {
    const std::string& name = model.layout().all()[index].name;
    const Vector& wanted = reference.gradients[name];
    std::span<float> found = model.gradient(static_cast<int>(index));
    double found_norm = 0, wanted_norm = 0;
    for (float value : found) found_norm += static_cast<double>(value) * static_cast<double>(value);
    for (double value : wanted) wanted_norm += value * value;
    double cosine = inner(found, wanted) / std::sqrt(found_norm * wanted_norm);
    // A bias on every key moves all scores of a row by the same amount, but for the rotation: its
    // gradient is what remains of sums that all but cancel.
    double& smallest =
        name.ends_with("k_proj.bias") ? agreement.cosine_of_k_bias : agreement.cosine;
    smallest = std::min(smallest, cosine);
    agreement.gradient_norm =
        std::max(agreement.gradient_norm, std::abs(std::sqrt(found_norm / wanted_norm) - 1.0));
  }
  return agreement;
}

struct Shape {
  const char* name;
  int kv_heads;
  bool bias;
  bool tied;
  int threads;
  bool qk_norm = false;
};

class ComputeAgainstReference : public testing::TestWithParam<Shape> {
 protected:
  static ModelConfig config() {
    ModelConfig model = small_model();
    model.kv_heads = GetParam().kv_heads;
    model.qkv_bias = GetParam().bias;
    model.tie_embeddings = GetParam().tied;
    model.qk_norm = GetParam().qk_norm;
    if (model.qk_norm) model.head_width = 12;
    return model;
  }
};

TEST_P(ComputeAgainstReference, Fp32AgreesToItsOwnPrecision) {
  Agreement found = agreement_of<float>(config(), GetParam().threads);
  EXPECT_LT(found.logits, 1e-6);
  EXPECT_LT(found.loss, 1e-7);
  EXPECT_GT(found.cosine, 1.0 - 1e-10);
  EXPECT_GT(found.cosine_of_k_bias, 1.0 - 1e-10);
  EXPECT_LT(found.gradient_norm, 1e-5);
}

TEST_P(ComputeAgainstReference, Bf16AgreesToBf16PrecisionAndNoBetter) {
  Agreement found = agreement_of<bf16>(config(), GetParam().threads);
  EXPECT_LT(found.logits, 2e-2);
  EXPECT_GT(found.logits, 1e-3);
  EXPECT_GT(found.cosine, 0.999);
  EXPECT_GT(found.cosine_of_k_bias, 0.95);
  EXPECT_LT(found.cosine, 1.0 - 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ComputeAgainstReference,
                         testing::Values(Shape{"TiedGrouped", 2, false, true, 2},
                                         Shape{"UntiedBias", 4, true, false, 1},
                                         Shape{"OneKeyHeadBias", 1, true, true, 3},
                                         Shape{"NormOfWideHeads", 2, false, true, 2, true}),
                         [](const auto& instance) { return instance.param.name; });

class Fp32Engine : public testing::Test {
 protected:
  Fp32Engine() : config(small_engine(directory.path())) {
    config.compute = Compute::kFp32;
    config.threads = 2;
  }
  TemporaryDirectory directory;
  EngineConfig config;
};

TEST_F(Fp32Engine, LearnsAndRepeatsItsBits) {
  Engine engine(config);
  engine.initialize();
  double before = engine.evaluate(engine.plan());
  std::vector<uint64_t> hashes = train_hashes(engine, 30);
  EXPECT_LT(engine.evaluate(engine.plan()), before - 0.03);
  Engine other(config);
  other.initialize();
  EXPECT_EQ(train_hashes(other, 30), hashes);
}

TEST_F(Fp32Engine, StartsFromTheWeightsOfBf16BeforeTheirRounding) {
  Engine engine(config);
  engine.initialize();
  double exact = engine.evaluate(engine.plan());
  config.compute = Compute::kBf16;
  Engine rounded(config);
  rounded.initialize();
  double near = rounded.evaluate(rounded.plan());
  EXPECT_NE(near, exact);
  EXPECT_NEAR(near, exact, 1e-3 * exact);
}

TEST_F(Fp32Engine, GoesOnFromACheckpointWhoseWeightsAreFp32) {
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 5);
  std::filesystem::path path = write_checkpoint(engine, directory.path() / "checkpoints");
  SafetensorsFile file(path / "model.safetensors");
  for (const TensorView& tensor : file.tensors()) EXPECT_EQ(tensor.dtype, "F32") << tensor.name;
  EXPECT_NE(engine.checkpoint().config_json.find("float32"), std::string::npos);
  EXPECT_EQ(read_engine_config(path).compute, Compute::kFp32);
  std::vector<uint64_t> expected = train_hashes(engine, 5);
  Engine other(config);
  other.load(path);
  EXPECT_EQ(train_hashes(other, 5), expected);

  config.compute = Compute::kBf16;
  Engine rounded(config);
  EXPECT_THROW(rounded.load(path), ConfigError);
}

TEST_F(Fp32Engine, RefusesAPlanWithFp8AnywhereAndSaysWhere) {
  Engine engine(config);
  engine.initialize();
  PrecisionPlan plan =
      PrecisionPlan::parse("[[rule]]\nmatch = \"model.layers.1.mlp.up_proj\"\nwgrad = \"fp8\"\n");
  for (bool evaluates : {false, true}) {
    try {
      evaluates ? static_cast<void>(engine.evaluate(plan)) : engine.set_plan(plan);
      FAIL() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.key(), "compute");
      EXPECT_NE(error.accepted().find("model.layers.1.mlp.up_proj"), std::string::npos);
    }
  }
  EXPECT_TRUE(engine.plan().rules.empty());
  EXPECT_NO_THROW(engine.set_plan(PrecisionPlan::bf16()));
}

TEST_F(Fp32Engine, ABitFlipReachesTheWeight) {
  config.faults = {{.kind = FaultKind::kBitFlip,
                    .site = "model.layers.0.mlp.up_proj.weight",
                    .start_step = 2,
                    .element = 3,
                    .bit = 30}};
  Engine flipped(config);
  config.faults.clear();
  Engine whole(config);
  flipped.initialize();
  whole.initialize();
  EXPECT_EQ(flipped.train_step().weights_hash, whole.train_step().weights_hash);
  EXPECT_NE(flipped.train_step().weights_hash, whole.train_step().weights_hash);
}

TEST(ComputeNames, AreReadBackAndOthersRefused) {
  for (Compute compute : {Compute::kBf16, Compute::kFp32}) {
    EXPECT_EQ(compute_from_name(compute_name(compute), "run.toml"), compute);
  }
  EXPECT_THROW(compute_from_name("fp16", "run.toml"), ConfigError);
}

TEST(ComputeNames, AConfigurationThatDoesNotSayIsRefused) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  std::string text = config.to_json();
  std::string key = "\"compute\":\"bf16\",";
  ASSERT_NE(text.find(key), std::string::npos);
  text.erase(text.find(key), key.size());
  EXPECT_THAT([&] { EngineConfig::from_json(text, "cut"); },
              ::testing::ThrowsMessage<FormatError>(::testing::HasSubstr("compute")));
  config.compute = Compute::kFp32;
  EXPECT_EQ(EngineConfig::from_json(config.to_json(), "new").compute, Compute::kFp32);
}

}  // namespace
}  // namespace gnomon::test
