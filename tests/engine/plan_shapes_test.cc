#include "trainer/engine/plan_shapes.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/errors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

struct Refusal {
  Recipe recipe;
  int width, ffn, vocabulary;
  int64_t tokens;
  const char* says;  // "" = accepted
};

TEST(PlanShapes, SizesThatCublasLtDoesNotTakeAreRefused) {
  for (const Refusal& it :
       {Refusal{Recipe::kBlock, 32, 48, 64, 32, ""},
        Refusal{Recipe::kBlock, 36, 48, 64, 32,
                "fprop of model.layers.0.self_attn.q_proj sums over 36"},
        Refusal{Recipe::kRowwise, 32, 50, 64, 32,
                "fprop of model.layers.0.mlp.gate_proj has columns: 50"},
        Refusal{Recipe::kRowwise, 32, 48, 60, 32, "fprop of lm_head has columns: 60"},
        Refusal{Recipe::kBlock, 32, 48, 64, 24,
                "wgrad of model.layers.0.self_attn.q_proj sums over 24"},
        Refusal{Recipe::kRowwiseGwHp, 32, 48, 64, 24, ""},
        Refusal{Recipe::kMx, 32, 64, 64, 32,
                "dgrad of model.layers.0.self_attn.k_proj sums over 16"},
        Refusal{Recipe::kMx, 64, 48, 64, 32, "dgrad of model.layers.0.mlp.gate_proj sums over 48"},
        Refusal{Recipe::kMx, 64, 64, 64, 48,
                "wgrad of model.layers.0.self_attn.q_proj sums over 48"},
        Refusal{Recipe::kMx, 64, 96, 64, 32, ""}, Refusal{Recipe::kCurrent, 36, 50, 60, 24, ""}}) {
    ModelConfig model = small_model();
    model.width = it.width;
    model.ffn = it.ffn;
    model.vocabulary = it.vocabulary;
    PrecisionPlan plan = PrecisionPlan::parse(PrecisionPlan::fp8(it.recipe).to_toml());
    if (*it.says == '\0') {
      EXPECT_NO_THROW(check_plan_shapes(plan, model, it.tokens)) << recipe_name(it.recipe);
      continue;
    }
    try {
      check_plan_shapes(plan, model, it.tokens, "p.toml");
      ADD_FAILURE() << "accepted: " << it.says;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.file(), "p.toml");
      EXPECT_EQ(error.line(), plan.rules[0].line);
      EXPECT_EQ(error.key(), "recipe");
      EXPECT_NE(error.accepted().find(it.says), std::string::npos) << error.what();
      EXPECT_NE(error.accepted().find("allow_ragged_tiles = true"), std::string::npos);
    }
    plan.allow_ragged_tiles = true;
    EXPECT_NO_THROW(check_plan_shapes(plan, model, it.tokens));
  }
}

TEST(PlanShapes, AreCheckedGemmByGemm) {
  ModelConfig model = small_model();
  const std::string plan =
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n[[rule]]\nmatch = \"*\"\nrecipe = \"mx\"\n";
  EXPECT_NO_THROW(check_plan_shapes(
      PrecisionPlan::parse(plan + "only = [\"fprop\"]\n"),
      [] {
        ModelConfig wide = small_model();
        wide.ffn = 64;
        return wide;
      }(),
      20));
  try {
    check_plan_shapes(PrecisionPlan::parse(plan + "only = [\"wgrad\"]\n"), model, 20, "p.toml");
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.line(), 5);
    EXPECT_EQ(error.value(), "\"mx\"");
    EXPECT_NE(error.accepted().find("the wgrad of model.layers.0.self_attn.q_proj sums over 20"),
              std::string::npos)
        << error.what();
  }
}

TEST(PlanShapes, HeadsOfAnotherWidthCount) {
  ModelConfig model = small_model();
  model.head_width = 10;  // q_proj is [40, 32], o_proj [32, 40]
  try {
    check_plan_shapes(PrecisionPlan::fp8(Recipe::kRowwise), model, 32, "p.toml");
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.accepted().find("fprop of model.layers.0.self_attn.q_proj has columns: 40"),
              std::string::npos)
        << error.what();
  }
}

// What it refuses would end a process: a part of an evaluation holds any number of sequences.
TEST(PlanShapes, ADeviceRefusesWhatItsProductsOfFp8CannotHave) {
  const BackendBase::Limits device{.promotes_at_will = false};
  const ModelConfig model = [] {
    ModelConfig made = small_model();
    made.vocabulary = 257;
    return made;
  }();
  const PrecisionPlan all = PrecisionPlan::fp8(Recipe::kCurrent);
  const PrecisionPlan layers = all.with_bf16_sites({"lm_head"});
  const auto refused = [&](const PrecisionPlan& plan, int64_t tokens) -> std::string {
    try {
      check_device_shapes(plan, model, tokens, 16, device);
      return "";
    } catch (const ConfigError& error) {
      return error.key();
    }
  };
  EXPECT_EQ(refused(PrecisionPlan::bf16(), 1000), "");
  EXPECT_EQ(refused(layers, 1024), "");
  EXPECT_EQ(refused(all, 1024), "vocabulary");
  EXPECT_EQ(refused(layers, 1000), "tokens");
  const std::string rules = layers.to_toml();
  const auto with = [&](const std::string& rule) {
    return PrecisionPlan::parse(rules + "[[rule]]\nmatch = \"*\"\n" + rule);
  };
  EXPECT_EQ(refused(with("only = [\"wgrad\"]\ngemms = \"bf16\"\n"), 1000), "tokens");
  const std::string hopper = "accumulate = \"hopper\"\n";
  EXPECT_EQ(refused(with(hopper), 1024), "");
  EXPECT_EQ(refused(with(hopper + "promote_every = 128\n"), 1024), "");
  EXPECT_EQ(refused(with(hopper + "promote_every = 32\n"), 1024), "promote_every");
}

TEST(PlanShapes, TheExamplesFitAModel) {
  ModelConfig model = small_model();
  model.width = 128;
  model.ffn = 352;
  model.layers = 4;
  int plans = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GNOMON_EXAMPLE_PLANS)) {
    const PrecisionPlan plan = PrecisionPlan::load(entry.path());
    EXPECT_NO_THROW(plan.check_sites(model.sites(), model.layers, entry.path())) << entry.path();
    EXPECT_NO_THROW(check_plan_shapes(plan, model, 256, entry.path())) << entry.path();
    EXPECT_TRUE(plan.resolve("model.layers.1.mlp.up_proj", model.layers).any_fp8());
    ++plans;
  }
  EXPECT_GE(plans, 7);
}

TEST(PlanShapes, TheEngineRefusesSuchAPlanAndKeepsItsOwn) {
  TemporaryDirectory directory;
  Engine engine(small_engine(directory.path()));
  engine.initialize();
  engine.set_plan(PrecisionPlan::fp8(Recipe::kBlock));
  const std::string before = engine.plan().to_toml();
  EXPECT_THROW(engine.set_plan(PrecisionPlan::fp8(Recipe::kMx)), ConfigError);
  EXPECT_THROW(engine.evaluate(PrecisionPlan::fp8(Recipe::kMx)), ConfigError);
  EXPECT_EQ(engine.plan().to_toml(), before);
  EXPECT_TRUE(engine.train_step().finite);
}

}  // namespace
}  // namespace gnomon::test
