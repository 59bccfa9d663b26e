// The engine's model against the FP64 reference: the loss and every parameter's gradient, under
// BF16 and FP8 plans. The reference rounds where the engine rounds, so that only FP32 summation
// order and the few roundings it tips over remain. Tolerances are on ‖a − b‖/‖b‖ for each
// parameter.
#include "trainer/engine/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/philox.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/recording_backend.h"
#include "tests/engine/reference_model.h"

namespace gnomon::test {
namespace {

constexpr int kModelTokens = 16;
constexpr int kModelSequences = 3;

struct ModelCase {
  std::string name;
  int kv_heads = 2;
  bool bias = false;
  bool tied = true;
  int ffn = 48;
  int head_width = 0;
  RopeScaling rope_scaling = {};
  bool qk_norm = false;
  std::string plan;
  double loss_tolerance = 1e-4;      // relative
  double gradient_tolerance = 1e-2;  // relative, by parameter
};

const char* const kCurrentPlan = R"(
[[rule]]
match = "*"
gemms = "fp8"
)";
const char* const kDelayedPlan = R"(
[[rule]]
match = "*"
gemms = "fp8"
recipe = "delayed"
amax_history = 4
margin = 1
)";
const char* const kMixedPlan = R"(
allow_e5m2_e5m2 = true
[[rule]]
match = "*"
fprop = "fp8"
dgrad = "bf16"
wgrad = "fp8"
[[rule]]
match = "*.mlp.*"
fprop = "bf16"
dgrad = "fp8"
wgrad = "bf16"
forward_format = "e5m2"
[[rule]]
match = "*.v_proj"
gemms = "fp8"
forward_format = "e5m2"
gradient_format = "e4m3"
[[rule]]
match = "lm_head"
gemms = "bf16"
)";

std::string recipe_rules(const std::string& recipe, const std::string& more = "") {
  return "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" + recipe + "\"\n" + more;
}

double relative_error(std::span<const float> found, const Vector& expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    double gap = static_cast<double>(found[i]) - expected[i];
    difference += gap * gap;
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

// A model with lively weights (norms and biases too) and a batch for it.
class ModelUnderTest {
 public:
  explicit ModelUnderTest(const ModelConfig& config, int threads = 1)
      : backend(threads),
        scaling(static_cast<int>(config.sites().size())),
        model(config, kModelSequences, kModelTokens, backend, scaling, {}),
        reference(config) {
    const ParameterLayout& layout = model.layout();
    for (size_t index = 0; index < layout.all().size(); ++index) {
      const Parameter& parameter = layout.all()[index];
      std::span<bf16> weight = model.weight(static_cast<int>(index));
      Vector& values = reference.weights[parameter.name];
      for (size_t i = 0; i < weight.size(); ++i) {
        float uniform = philox_uniform(philox(21, index, i)[0]) - 0.5f;
        // Neighbours differ in range, so that each has a scale of its own.
        float range = 0.375f + 0.125f * static_cast<float>(index % 3);
        weight[i] =
            to_bf16(range * uniform + (parameter.name.ends_with("norm.weight") ? 1.0f : 0.0f));
        values.push_back(static_cast<double>(to_float(weight[i])));
      }
    }
    model.weights_changed();
    for (uint32_t t : uniform_tokens(31, config.vocabulary, kModelSequences * kModelTokens)) {
      tokens.push_back(static_cast<int32_t>(t));
    }
    for (uint32_t t : uniform_tokens(32, config.vocabulary, kModelSequences * kModelTokens)) {
      targets.push_back(static_cast<int32_t>(t));
    }
  }

  void use_plan(const std::string& toml) {
    reference.plan = PrecisionPlan::parse(toml);
    reference.rounds = true;
    reference.quantised_operand = [this](const Vector& x, const Quantizer& quantizer,
                                         double scale) {
      const QuantisedTensor* found = backend.find(x, quantizer, scale);
      EXPECT_NE(found, nullptr) << "the engine quantised no such tensor";
      return found == nullptr ? nullptr : &found->values;
    };
    sites.clear();
    for (const std::string& site : model.sites()) {
      sites.push_back(reference.plan.resolve(site, model.config().layers));
    }
  }
  PassPlan pass(bool record = true) { return {.sites = &sites, .step = 1, .record = record}; }

  RecordingBackend backend;
  ScalingState scaling;
  Model model;
  ReferenceModel reference;
  std::vector<SitePrecision> sites;
  std::vector<int32_t> tokens, targets;
};

void expect_same_gradients(ModelUnderTest& test, double tolerance) {
  const ParameterLayout& layout = test.model.layout();
  for (size_t index = 0; index < layout.all().size(); ++index) {
    const std::string& name = layout.all()[index].name;
    double error = relative_error(test.model.gradient(static_cast<int>(index)),
                                  test.reference.gradients[name]);
    EXPECT_LT(error, tolerance) << name;
  }
}

class ModelAgainstReference : public testing::TestWithParam<ModelCase> {};

TEST_P(ModelAgainstReference, LossAndEveryGradientAgree) {
  ModelConfig config = small_model();
  config.kv_heads = GetParam().kv_heads;
  config.qkv_bias = GetParam().bias;
  config.tie_embeddings = GetParam().tied;
  config.ffn = GetParam().ffn;
  config.head_width = GetParam().head_width;
  config.rope_scaling = GetParam().rope_scaling;
  config.qk_norm = GetParam().qk_norm;
  ModelUnderTest test(config);
  test.use_plan(GetParam().plan);
  double scale = 1.0 / (kModelSequences * kModelTokens);
  double loss = test.model.forward_backward(test.pass(), test.tokens, test.targets,
                                            static_cast<float>(scale), false);
  double expected = test.reference.forward_backward(test.tokens, test.targets, kModelTokens, scale);
  EXPECT_NEAR(loss, expected, GetParam().loss_tolerance * expected);
  expect_same_gradients(test, GetParam().gradient_tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, ModelAgainstReference,
    testing::Values(
        ModelCase{.name = "Bf16TiedGrouped", .plan = ""},
        ModelCase{.name = "Bf16UntiedBias", .kv_heads = 4, .bias = true, .tied = false, .plan = ""},
        ModelCase{.name = "Bf16OneKeyHead", .kv_heads = 1, .plan = ""},
        ModelCase{.name = "Bf16WideHeadsAndScaledRotation",
                  .bias = true,
                  .head_width = 12,
                  .rope_scaling = {RopeScaling::Kind::kLlama3, 8, 1, 4, 32},
                  .plan = ""},
        ModelCase{.name = "Bf16NormOfWideHeads", .head_width = 12, .qk_norm = true, .plan = ""},
        ModelCase{.name = "Fp8MixedNormOfHeads", .qk_norm = true, .plan = kMixedPlan},
        ModelCase{.name = "Fp8CurrentNarrowHeads",
                  .head_width = 4,
                  .rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4},
                  .plan = kCurrentPlan},
        ModelCase{.name = "Fp8CurrentTied", .plan = kCurrentPlan},
        ModelCase{.name = "Fp8CurrentUntiedBias",
                  .kv_heads = 4,
                  .bias = true,
                  .tied = false,
                  .plan = kCurrentPlan},
        ModelCase{.name = "Fp8DelayedEmptyHistory", .plan = kDelayedPlan},
        ModelCase{.name = "Fp8MixedGemmsAndFormats", .bias = true, .plan = kMixedPlan},
        ModelCase{.name = "CurrentPowerOfTwo",
                  .plan = recipe_rules("current", "power_of_two = true\n")},
        ModelCase{.name = "Rowwise", .plan = recipe_rules("rowwise")},
        ModelCase{.name = "RowwiseUntiedBias",
                  .kv_heads = 4,
                  .bias = true,
                  .tied = false,
                  .plan = recipe_rules("rowwise")},
        ModelCase{.name = "RowwiseFp32Scales",
                  .plan = recipe_rules("rowwise", "power_of_two = false\n")},
        ModelCase{.name = "RowwiseHighPrecisionWgrad", .plan = recipe_rules("rowwise_gw_hp")},
        ModelCase{.name = "RowwiseHighPrecisionWgradFp32Scales",
                  .plan = recipe_rules("rowwise_gw_hp", "power_of_two = false\n")},
        ModelCase{.name = "Block", .ffn = 304, .plan = recipe_rules("block")},
        ModelCase{.name = "BlockFp32Scales",
                  .ffn = 304,
                  .plan = recipe_rules("block", "power_of_two = false\n")},
        ModelCase{.name = "Mx", .plan = recipe_rules("mx")},
        ModelCase{.name = "Tile64", .plan = recipe_rules("tile64")},
        ModelCase{.name = "Tile64Hopper",
                  .plan = recipe_rules("tile64", "accumulate = \"hopper\"\n")},
        ModelCase{.name = "MxE3m2ByOcp",
                  .plan = recipe_rules("mx", "forward_format = \"e3m2\"\nmx_scale = \"ocp\"\n")},
        ModelCase{.name = "MxE2m1", .plan = recipe_rules("mx", "forward_format = \"e2m1\"\n")},
        ModelCase{.name = "ReducedMantissa",
                  .plan = recipe_rules("none",
                                       "forward_format = \"e8m3\"\ngradient_format = \"e8m4\"\n")},
        ModelCase{.name = "HopperCurrent",
                  .plan = recipe_rules("current", "accumulate = \"hopper\"\n")},
        ModelCase{.name = "HopperBlockUntiedBias",
                  .kv_heads = 4,
                  .bias = true,
                  .tied = false,
                  .plan = recipe_rules("block", "accumulate = \"hopper\"\n")},
        ModelCase{.name = "RecipesSideBySide",
                  .plan = recipe_rules("block") +
                          "[[rule]]\nmatch = \"*.k_proj\"\nrecipe = \"mx\"\n"
                          "[[rule]]\nmatch = \"*.up_proj\"\nrecipe = \"rowwise\"\npower_of_two = "
                          "false\n[[rule]]\nmatch = \"lm_head\"\nrecipe = \"delayed\"\n"},
        ModelCase{.name = "ARecipeForEachGemm",
                  .ffn = 304,
                  .plan = recipe_rules("current") +
                          "[[rule]]\nmatch = \"*\"\nonly = [\"dgrad\"]\nrecipe = \"block\"\n"
                          "[[rule]]\nmatch = \"*\"\nonly = [\"wgrad\"]\nrecipe = \"mx\"\n"
                          "forward_format = \"e3m2\"\n"
                          "[[rule]]\nmatch = \"*.{gate,q}_proj\"\nonly = [\"fprop\", \"wgrad\"]\n"
                          "recipe = \"delayed\"\nmargin = 1\n"}),
    [](const auto& instance) { return instance.param.name; });

double largest_error(ModelUnderTest& test) {
  double largest = 0;
  const ParameterLayout& layout = test.model.layout();
  for (size_t index = 0; index < layout.all().size(); ++index) {
    largest = std::max(largest, relative_error(test.model.gradient(static_cast<int>(index)),
                                               test.reference.gradients[layout.all()[index].name]));
  }
  return largest;
}

TEST(Model, TheComparisonTellsFp8FromBf16AndFromNoRounding) {
  ModelUnderTest test(small_model());
  test.use_plan(kCurrentPlan);
  test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
  test.reference.plan = PrecisionPlan::bf16();
  test.reference.forward_backward(test.tokens, test.targets, kModelTokens, 1.0);
  EXPECT_GT(largest_error(test), 0.1);
  test.reference.rounds = false;
  test.reference.forward_backward(test.tokens, test.targets, kModelTokens, 1.0);
  EXPECT_GT(largest_error(test), 0.1);
}

TEST(Model, Bf16StaysNearTheModelWithoutAnyRounding) {
  ModelUnderTest test(small_model());
  test.use_plan("");
  double loss = test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
  test.reference.rounds = false;
  double expected = test.reference.forward_backward(test.tokens, test.targets, kModelTokens, 1.0);
  EXPECT_NEAR(loss, expected, 2e-3 * expected);
  expect_same_gradients(test, 0.05);
}

TEST(Model, DelayedScalesComeFromTheHistoryWithMargin) {
  ModelUnderTest test(small_model());
  test.use_plan(kDelayedPlan);
  // Histories that differ from the tensors' own amaxes by powers of two that differ from site to
  // site.
  auto amax = [&](int site, TensorRole role) {
    return std::ldexp(role == TensorRole::kGradient ? 0.02f : 1.7f,
                      (site * 3 + static_cast<int>(role)) % 5);
  };
  for (int site = 0; site < static_cast<int>(test.sites.size()); ++site) {
    for (TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradient}) {
      test.scaling.history(site, role).push(amax(site, role), 4);
    }
  }
  test.reference.history_amax = [&](const std::string& site, const std::string& tensor) {
    auto found = std::ranges::find(test.model.sites(), site);
    return static_cast<double>(
        amax(static_cast<int>(found - test.model.sites().begin()), tensor_role_from_name(tensor)));
  };
  test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
  test.reference.forward_backward(test.tokens, test.targets, kModelTokens, 1.0);
  expect_same_gradients(test, 1e-2);
}

TEST(Model, QuantisesEachOperandOnceAndWeightsOncePerStep) {
  ModelUnderTest test(small_model());
  test.use_plan(kCurrentPlan);
  test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
  // Two layers and the head: inputs of qkv, o, gate and up, down; seven weights; seven output
  // gradients.
  EXPECT_EQ(test.backend.quantised().size(), 2u * (4 + 7 + 7) + 3);
  test.backend.clear();
  test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, true);
  EXPECT_EQ(test.backend.quantised().size(), 2u * (4 + 7) + 2);
  test.model.weights_changed();
  test.backend.clear();
  test.model.forward(test.pass(), test.tokens, test.targets);
  EXPECT_EQ(test.backend.quantised().size(), 2u * (4 + 7) + 2);
}

int64_t products_of(ModelUnderTest& test, const std::string& plan) {
  test.use_plan(plan);
  test.backend.clear();
  test.model.forward_backward(test.pass(false), test.tokens, test.targets, 1.0f, false);
  return std::ssize(test.backend.products());
}

// fprop multiplies by a transposed weight, wgrad by a transposed gradient, dgrad by neither.
TEST(Model, HopperSumsArePromotedAsTheRecipeDoesUnlessThePlanSaysOtherwise) {
  struct Expected {
    std::string plan;
    int64_t fprop, dgrad, wgrad;
  };
  const std::string hopper = "accumulate = \"hopper\"\n";
  for (const Expected& it :
       {Expected{recipe_rules("current", hopper), 0, 128, 128},
        Expected{recipe_rules("rowwise", hopper), 0, 128, 128},
        Expected{recipe_rules("block", hopper), 128, 128, 128},
        Expected{recipe_rules("current", hopper + "promote_every = 64\n"), 64, 64, 64},
        Expected{recipe_rules("delayed", hopper) +
                     "[[rule]]\nmatch = \"*\"\nonly = [\"wgrad\"]\npromote_every = 0\n",
                 0, 128, 0}}) {
    ModelUnderTest test(small_model());
    EXPECT_EQ(products_of(test, it.plan), 2 * (7 + 7 + 7) + 3);
    EXPECT_EQ(test.backend.scaled_products().size(), 45u);
    for (const auto& [shape, accumulation] : test.backend.scaled_products()) {
      EXPECT_TRUE(accumulation.hopper);
      EXPECT_EQ(accumulation.promote_every, shape.transpose_a   ? it.wgrad
                                            : shape.transpose_b ? it.fprop
                                                                : it.dgrad)
          << it.plan;
    }
  }
}

// Two layers of seven sites in four groups, and the head; three GEMMs each.
TEST(Model, SitesThatShareAnInputRunAsOneProductWhereTheirPrecisionsAllow) {
  ModelUnderTest test(small_model());
  const std::string fp8 = kCurrentPlan;
  EXPECT_EQ(products_of(test, ""), 2 * (4 + 4 + 4) + 3);
  EXPECT_EQ(products_of(test, fp8), 2 * (4 + 7 + 7) + 3);
  // Only the layer with a pinned site changes, and only that site's group.
  EXPECT_EQ(products_of(test, fp8 + "[[rule]]\nmatch = \"*.0.*.k_proj\"\ngemms = \"bf16\"\n"),
            2 * (4 + 7 + 7) + 2 + 3);
  EXPECT_EQ(products_of(test, "[[rule]]\nmatch = \"*.1.*.up_proj\"\nwgrad = \"fp8\"\n"),
            2 * (4 + 4 + 4) + 2 + 3);
  EXPECT_EQ(products_of(test, "[[rule]]\nmatch = \"*.1.*.up_proj\"\nfprop = \"fp8\"\n"),
            2 * (4 + 4 + 4) + 1 + 3);
}

// Matrices whose sizes leave gaps between them, so that no two make one; their copies in FP8 lie
// without gaps.
TEST(Model, AShapeWithGapsBetweenItsMatricesAgreesToo) {
  ModelConfig config = small_model();
  config.width = 36;
  config.heads = 6;
  config.kv_heads = 3;
  config.ffn = 50;
  for (const auto& [plan, fprop] : {std::pair{"", 7}, {kCurrentPlan, 4}}) {
    ModelUnderTest test(config);
    EXPECT_EQ(products_of(test, plan), 2 * (fprop + 7 + 7) + 3);
    double loss = test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
    double expected = test.reference.forward_backward(test.tokens, test.targets, kModelTokens, 1.0);
    EXPECT_NEAR(loss, expected, 1e-4 * expected);
    expect_same_gradients(test, 1e-2);
  }
}

TEST(Model, AccumulationAddsEveryGradient) {
  for (bool tied : {true, false}) {
    ModelConfig config = small_model();
    config.qkv_bias = tied;
    config.qk_norm = !tied;
    config.tie_embeddings = tied;
    ModelUnderTest test(config);
    test.use_plan("");
    test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
    std::vector<float> once(test.model.gradients().begin(), test.model.gradients().end());
    test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, true);
    for (size_t i = 0; i < once.size(); ++i) {
      ASSERT_NEAR(test.model.gradients()[i], 2 * once[i], 1e-4f * std::abs(once[i]) + 1e-4f) << i;
    }
    test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
    EXPECT_TRUE(std::ranges::equal(test.model.gradients(), once));
  }
}

TEST(Model, AShorterBatchGivesItsOwnLoss) {
  ModelUnderTest test(small_model());
  test.use_plan("");
  std::vector<int32_t> tokens(test.tokens.begin(), test.tokens.begin() + kModelTokens);
  std::vector<int32_t> targets(test.targets.begin(), test.targets.begin() + kModelTokens);
  double loss = test.model.forward(test.pass(false), tokens, targets);
  EXPECT_NEAR(loss, test.reference.loss(tokens, targets, kModelTokens), 1e-4 * loss);
}

TEST(Model, ABf16PlanQuantisesNothing) {
  ModelUnderTest test(small_model());
  test.use_plan("");
  test.model.forward_backward(test.pass(), test.tokens, test.targets, 1.0f, false);
  EXPECT_TRUE(test.backend.quantised().empty());
}

TEST(Model, ThreadsChangeSumsOnlyWithinRounding) {
  ModelUnderTest one(small_model(), 1);
  ModelUnderTest two(small_model(), 2);
  for (ModelUnderTest* test : {&one, &two}) {
    test->use_plan("");
    test->model.forward_backward(test->pass(), test->tokens, test->targets, 1.0f, false);
    test->reference.forward_backward(test->tokens, test->targets, kModelTokens, 1.0);
    expect_same_gradients(*test, 1e-2);
  }
}

}  // namespace
}  // namespace gnomon::test
