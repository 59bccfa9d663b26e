#include "trainer/engine/plan_shapes.h"

#include <gtest/gtest.h>

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
