// What a step reports of its casts.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

constexpr double kNone = 1e-6;  // the share that stands for nothing
constexpr double kRounding = 1e-6;

class StepCasts : public testing::Test {
 protected:
  // Returns the summary of the third step, in which `delayed` has histories.
  std::optional<CastSummary> casts(const PrecisionPlan& plan, bool twice = false) {
    Engine engine(config);
    engine.set_plan(plan);
    engine.initialize();
    train_hashes(engine, 2);
    return engine.train_step(nullptr, twice).casts;
  }
  void shift_scale(const std::string& site, const std::string& tensor, int log2_factor) {
    config.faults = {{.kind = FaultKind::kScaleShift,
                      .site = site,
                      .tensor = tensor,
                      .start_step = 1,
                      .log2_factor = log2_factor}};
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  const PrecisionPlan current = PrecisionPlan::fp8(Recipe::kCurrent);
  const PrecisionPlan delayed = PrecisionPlan::fp8(Recipe::kDelayed);
  const std::string down = "model.layers.1.mlp.down_proj";
};

TEST_F(StepCasts, ScalesOfAHealthyRunFit) {
  const std::optional<CastSummary> found = casts(current);
  ASSERT_TRUE(found);
  EXPECT_GT(found->peak, 0.5);
  EXPECT_LE(found->peak, 1 + kRounding);
  EXPECT_NEAR(found->saturated, kNone, kNone * kRounding);
  EXPECT_GE(found->flushed, kNone * (1 - kRounding));
  EXPECT_LT(found->flushed, 1e-2);
}

TEST_F(StepCasts, OfEveryRecipeAreCounted) {
  for (const char* recipe : {"current", "delayed", "rowwise", "block", "mx"}) {
    const std::optional<CastSummary> found = casts(PrecisionPlan::parse(
        "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" +
        std::string(recipe) + "\"\n"));
    ASSERT_TRUE(found) << recipe;
    EXPECT_GT(found->peak, 0.5) << recipe;
    EXPECT_LT(found->peak, 4) << recipe << ": an amax may grow over its history";
  }
}

// One tensor of some forty.
TEST_F(StepCasts, AScaleThatIsTooLargeShowsInPeakAndSaturation) {
  for (const PrecisionPlan* plan : {&current, &delayed}) {
    for (const char* tensor : {"input", "weight", "gradient"}) {
      config.faults.clear();
      const std::optional<CastSummary> healthy = casts(*plan);
      shift_scale(down, tensor, 6);
      const std::optional<CastSummary> faulty = casts(*plan);
      ASSERT_TRUE(healthy && faulty);
      EXPECT_GT(faulty->saturated, 1.2 * healthy->saturated) << tensor;
      if (plan == &current) {
        EXPECT_NEAR(faulty->peak, 64, 64 * kRounding) << tensor;
      } else {
        EXPECT_GT(faulty->peak, 16) << tensor;
      }
    }
  }
}

TEST_F(StepCasts, AScaleThatIsTooSmallShowsInWhatIsFlushed) {
  const std::optional<CastSummary> healthy = casts(current);
  shift_scale(down, "input", -8);
  const std::optional<CastSummary> faulty = casts(current);
  ASSERT_TRUE(healthy && faulty);
  EXPECT_GT(faulty->flushed, 1.1 * healthy->flushed);
  EXPECT_EQ(faulty->saturated, healthy->saturated);
  EXPECT_LE(faulty->peak, 1 + kRounding);
}

TEST_F(StepCasts, AreAbsentWithoutLowPrecision) {
  EXPECT_FALSE(casts(PrecisionPlan::bf16()));
  config.compute = Compute::kFp32;
  EXPECT_FALSE(casts(PrecisionPlan::bf16()));
}

// Also on a run that was in FP8 before: nothing of earlier steps is left.
TEST_F(StepCasts, AreOfOneStepAlone) {
  Engine engine(config);
  engine.set_plan(current);
  engine.initialize();
  const std::optional<CastSummary> first = engine.train_step().casts;
  engine.evaluate(current);
  const std::optional<CastSummary> second = engine.train_step().casts;
  Engine other(config);
  other.set_plan(current);
  other.initialize();
  EXPECT_EQ(other.train_step().casts, first);
  EXPECT_EQ(other.train_step().casts, second) << "an evaluation counts in no step";
  engine.set_plan(PrecisionPlan::bf16());
  EXPECT_FALSE(engine.train_step().casts);
}

TEST_F(StepCasts, OfAStepThatIsComputedTwiceCountOnce) {
  for (const PrecisionPlan* plan : {&current, &delayed}) {
    EXPECT_EQ(casts(*plan, true), casts(*plan, false));
  }
}

TEST_F(StepCasts, DoNotDependOnThreads) {
  config.threads = 1;
  const std::optional<CastSummary> alone = casts(current);
  config.threads = 2;
  EXPECT_EQ(casts(current), alone);
}

}  // namespace
}  // namespace gnomon::test
