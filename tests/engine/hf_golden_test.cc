// The engine against transformers: the same weights, loaded from the directory that transformers
// saved, and the same tokens give the same logits, loss and gradients, and ten steps of AdamW go
// the same way. tests/golden/make_model_goldens.py makes the values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "storage/safetensors.h"
#include "trainer/engine/hf_import.h"
#include "trainer/engine/model.h"
#include "trainer/engine/optimizer.h"

namespace gnomon::test {
namespace {

namespace fs = std::filesystem;

std::vector<double> values_of(const TensorView& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.bytes() / dtype_bytes(tensor.dtype)));
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == "F32") {
      float value;
      std::memcpy(&value, bytes + 4 * i, sizeof value);
      values[i] = static_cast<double>(value);
    } else {
      EXPECT_EQ(tensor.dtype, "BF16") << tensor.name;
      uint16_t bits;
      std::memcpy(&bits, bytes + 2 * i, sizeof bits);
      values[i] = static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
    }
  }
  return values;
}

struct Comparison {
  double relative_error = 0;  // ‖found − expected‖/‖expected‖
  double cosine = 0;
  double norm_ratio = 0;  // ‖found‖/‖expected‖
};

Comparison compare(std::span<const float> found, const TensorView& tensor) {
  const std::vector<double> expected = values_of(tensor);
  EXPECT_EQ(found.size(), expected.size()) << tensor.name;
  double difference = 0, found_square = 0, expected_square = 0, inner = 0;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    const double x = static_cast<double>(found[i]);
    difference += (x - expected[i]) * (x - expected[i]);
    found_square += x * x;
    expected_square += expected[i] * expected[i];
    inner += x * expected[i];
  }
  EXPECT_GT(expected_square, 0) << tensor.name;
  return {std::sqrt(difference / expected_square),
          inner / std::sqrt(found_square * expected_square),
          std::sqrt(found_square / expected_square)};
}

struct Outcome {
  Comparison logits;
  double loss_error = 0;                        // relative
  std::map<std::string, Comparison> gradients;  // by parameter
};

class HfGolden : public testing::TestWithParam<std::string> {
 protected:
  HfGolden()
      : hf(fs::path(GNOMON_GOLDEN_DIRECTORY) / GetParam()),
        expected(fs::path(GNOMON_GOLDEN_DIRECTORY) / (GetParam() + "_expected.safetensors")) {
    const TensorView& all = *expected.find("tokens");
    sequences = all.shape[0];
    length = all.shape[1] - 1;
    for (int64_t i = 0; i < sequences; ++i) {
      for (int64_t j = 0; j <= length; ++j) {
        int64_t token;
        const auto* at = static_cast<const std::byte*>(all.data) + 8 * (i * (length + 1) + j);
        std::memcpy(&token, at, sizeof token);
        if (j < length) tokens.push_back(static_cast<int32_t>(token));
        if (j > 0) targets.push_back(static_cast<int32_t>(token));
      }
    }
  }

  template <class E>
  Outcome outcome(const std::string& prefix) {
    auto backend = make_cpu_backend<E>(2);
    ScalingState scaling(static_cast<int>(hf.config().sites().size()));
    BasicModel<E> model(hf.config(), sequences, length, *backend, scaling, {});
    std::vector<float> weights(static_cast<size_t>(model.layout().elements()));
    hf.read(weights);
    model.set_weights(weights);
    std::vector<SitePrecision> sites(model.sites().size());
    PassPlan pass{.sites = &sites, .step = 1, .record = false};
    const double count = static_cast<double>(tokens.size());
    const double loss =
        model.forward_backward(pass, tokens, targets, static_cast<float>(1.0 / count), false);
    Outcome result;
    result.loss_error =
        std::abs(loss / count / values_of(*expected.find(prefix + ".loss")).front() - 1.0);
    for (size_t i = 0; i < model.layout().all().size(); ++i) {
      const std::string& name = model.layout().all()[i].name;
      const TensorView* gradient = expected.find(prefix + ".gradient." + name);
      if (gradient == nullptr) {
        ADD_FAILURE() << "transformers has no gradient of " << name;
        continue;
      }
      result.gradients[name] = compare(model.gradient(static_cast<int>(i)), *gradient);
    }
    result.logits = compare(model.logits(pass, tokens), *expected.find(prefix + ".logits"));
    return result;
  }

  HfCheckpoint hf;
  SafetensorsFile expected;
  int64_t sequences = 0, length = 0;
  std::vector<int32_t> tokens, targets;
};

TEST_P(HfGolden, Fp32GivesTransformersLogitsLossAndGradients) {
  const Outcome found = outcome<float>("fp32");
  EXPECT_LE(found.logits.relative_error, 1e-5);
  EXPECT_LE(found.loss_error, 1e-6);
  for (const auto& [name, gradient] : found.gradients) {
    EXPECT_GE(gradient.cosine, 0.99999) << name;
    EXPECT_NEAR(gradient.norm_ratio, 1.0, 1e-4) << name;
  }
}

TEST_P(HfGolden, Bf16GivesTransformersLogitsLossAndGradients) {
  const Outcome found = outcome<bf16>("bf16");
  EXPECT_LE(found.logits.relative_error, 2e-2);
  EXPECT_LE(found.loss_error, 5e-3);
  for (const auto& [name, gradient] : found.gradients) {
    EXPECT_GE(gradient.cosine, 0.999) << name;
    EXPECT_NEAR(gradient.norm_ratio, 1.0, 2e-2) << name;
  }
}

TEST_P(HfGolden, TenStepsOfAdamwGiveTransformersLossesAndLogits) {
  const SafetensorsFile steps(fs::path(GNOMON_GOLDEN_DIRECTORY) /
                              (GetParam() + "_adamw.safetensors"));
  const std::vector<double> losses = values_of(*steps.find("adamw.losses"));
  ASSERT_EQ(losses.size(), 10u);
  auto backend = make_cpu_backend<float>(2);
  ScalingState scaling(static_cast<int>(hf.config().sites().size()));
  BasicModel<float> model(hf.config(), sequences, length, *backend, scaling, {});
  OptimizerConfig config;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = 0.1;
  config.clip = 0;
  Optimizer optimizer(config, model.layout(), *backend);
  hf.read(optimizer.masters());
  model.set_weights(optimizer.masters());
  std::vector<SitePrecision> sites(model.sites().size());
  const double count = static_cast<double>(tokens.size());
  for (size_t step = 1; step <= losses.size(); ++step) {
    const PassPlan pass{.sites = &sites, .step = static_cast<int64_t>(step), .record = false};
    const double loss =
        model.forward_backward(pass, tokens, targets, static_cast<float>(1.0 / count), false);
    EXPECT_NEAR(loss / count / losses[step - 1], 1.0, 1e-6) << "step " << step;
    optimizer.update(static_cast<int64_t>(step), 1e-3, 0.0, model.gradients(),
                     model.working_weights());
    model.weights_changed();
  }
  const PassPlan pass{.sites = &sites, .step = 11, .record = false};
  EXPECT_LE(compare(model.logits(pass, tokens), *steps.find("adamw.logits")).relative_error, 1e-5);
}

TEST_P(HfGolden, NoGradientOfTransformersIsLeftOut) {
  size_t gradients = 0;
  for (const TensorView& tensor : expected.tensors()) {
    if (!tensor.name.starts_with("fp32.gradient.")) continue;
    ++gradients;
    EXPECT_NE(hf.layout().find(tensor.name.substr(14)), nullptr) << tensor.name;
  }
  EXPECT_EQ(gradients, hf.layout().all().size());
}

INSTANTIATE_TEST_SUITE_P(Models, HfGolden, testing::Values("llama", "llama3", "qwen2", "qwen3"),
                         [](const auto& instance) { return instance.param; });

TEST(Rotary, FrequenciesAreThoseOfTransformers) {
  const RopeScaling llama31{RopeScaling::Kind::kLlama3, 8, 1, 4, 8192};
  const RopeScaling llama32{RopeScaling::Kind::kLlama3, 32, 1, 4, 8192};
  const std::map<std::string, Rotary> rotations = {
      {"llama31", {500000, llama31}},
      {"llama32", {500000, llama32}},
      {"linear", {10000, {.kind = RopeScaling::Kind::kLinear, .factor = 2.5}}},
      {"plain", {1000000, {}}}};
  std::ifstream file(fs::path(GNOMON_GOLDEN_DIRECTORY) / "rope_frequencies.txt");
  size_t compared = 0;
  for (std::string line; std::getline(file, line); ++compared) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<double> expected;
    for (double value; words >> value;) expected.push_back(value);
    ASSERT_GE(expected.size(), 32u) << line;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double found =
          rotations.at(name).frequency(static_cast<int>(i), 2 * static_cast<int>(expected.size()));
      EXPECT_NEAR(found, expected[i], 1e-6 * expected[i]) << name << " pair " << i;
    }
  }
  EXPECT_EQ(compared, rotations.size());
}

}  // namespace
}  // namespace gnomon::test
