// A step whose gradients are computed twice has the bits of one that computes them once, and a
// computation that went wrong leaves no trace in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/host.h"
#include "protocol/json.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/forwarding_backend.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kStepsCompared = 6;
const std::string kFlippedParameter = "model.layers.1.self_attn.v_proj.weight";

PrecisionPlan plan_of_recipe(const std::string& recipe) {
  if (recipe == "bf16" || recipe == "fp32") return PrecisionPlan::bf16();
  return PrecisionPlan::parse(
      "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" + recipe +
      "\"\n" + (recipe == "delayed" ? "amax_history = 3\n" : ""));
}

// What a step leaves and what later steps depend on.
struct Left {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;
  uint64_t weights = 0, batch = 0;
  std::string state;  // scaling histories among it
  bool operator==(const Left&) const = default;
};

Left left_by(const Engine& engine, const StepResult& it) {
  return {it.step,         it.loss,       it.grad_norm,
          it.weights_hash, it.batch_hash, engine.checkpoint().trainer_state_json};
}

// Adds to one number of the embedding's output in the pass of this number, counted from 1.
class GlitchingBackend final : public ForwardingBackend<bf16> {
 public:
  GlitchingBackend(int threads, int pass) : ForwardingBackend(threads), passes_left_(pass) {}

  void embed(std::span<const int32_t> tokens, std::span<const bf16> table, int64_t width,
             std::span<bf16> y) override {
    ForwardingBackend::embed(tokens, table, width, y);
    if (--passes_left_ == 0) y[5] = to_bf16(1000.0f);
  }

 private:
  int passes_left_;
};

class GradientsTwice : public testing::Test {
 protected:
  std::unique_ptr<Engine> start(const PrecisionPlan& plan,
                                const BackendMakers* backends = nullptr) {
    auto engine = std::make_unique<Engine>(config, EngineRole::kLive, nullptr, backends);
    engine->set_plan(plan);
    engine->initialize();
    return engine;
  }
  std::vector<Left> run(const PrecisionPlan& plan, bool twice) {
    const std::unique_ptr<Engine> engine = start(plan);
    std::vector<Left> all;
    while (engine->step() < kStepsCompared) {
      const StepResult result = engine->train_step(nullptr, twice);
      all.push_back(left_by(*engine, result));
      differences.push_back(result.mismatch);
      if (!result.committed) break;
    }
    return all;
  }
  void flip_gradient(int64_t step, int bit) {
    config.faults.push_back({.kind = FaultKind::kBitFlip,
                             .site = kFlippedParameter,
                             .tensor = "gradient",
                             .start_step = step,
                             .element = 17,
                             .bit = bit});
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  std::vector<std::string> differences;  // of the steps of run()
};

class GradientsTwiceOf : public GradientsTwice, public testing::WithParamInterface<std::string> {
 protected:
  GradientsTwiceOf() {
    config.batch.accumulation = 3;
    if (GetParam() == "fp32") config.compute = Compute::kFp32;
  }
};

TEST_P(GradientsTwiceOf, LeaveWhatGradientsOnceLeave) {
  const PrecisionPlan plan = plan_of_recipe(GetParam());
  const std::vector<Left> once = run(plan, false);
  differences.clear();
  EXPECT_EQ(run(plan, true), once);
  EXPECT_THAT(differences, testing::Each(IsEmpty()));
  EXPECT_NE(once.front().weights, once.back().weights);
}

INSTANTIATE_TEST_SUITE_P(Recipes, GradientsTwiceOf,
                         testing::Values("bf16", "fp32", "current", "delayed", "rowwise", "block",
                                         "mx"),
                         [](const auto& instance) { return instance.param; });

TEST_F(GradientsTwice, OfAStepThatIsSkippedAgree) {
  for (const char* site : {"q_proj", "k_proj"}) {
    config.faults.push_back({.kind = FaultKind::kStuckBit,
                             .site = std::string("model.layers.0.self_attn.") + site,
                             .tensor = "output",
                             .start_step = 2,
                             .end_step = 3,
                             .element = 1,
                             .bit = 14});
  }
  const std::unique_ptr<Engine> engine = start(PrecisionPlan::bf16());
  EXPECT_TRUE(engine->train_step(nullptr, true).finite);
  const StepResult skipped = engine->train_step(nullptr, true);
  EXPECT_FALSE(skipped.finite);
  EXPECT_EQ(skipped.mismatch, "") << "NaN is NaN to the bit";
  EXPECT_EQ(engine->step(), 2);
}

// A collector counts its looks: those of a step that is computed twice are looked at once.
TEST_F(GradientsTwice, HaveTheStatisticsOfOnce) {
  const auto looks = [&](bool twice) {
    const std::unique_ptr<Engine> engine = start(plan_of_recipe("delayed"));
    const std::unique_ptr<StatisticsCollector> collector = engine->statistics({}, "test");
    std::vector<std::string> all;
    for (int i = 0; i < 3; ++i) {
      engine->train_step(collector.get(), twice);
      StatisticsReport report;
      report.rows = collector->rows();
      all.push_back(to_json(report));
    }
    return all;
  };
  EXPECT_EQ(looks(true), looks(false));
}

TEST_F(GradientsTwice, AFlippedBitIsFoundAndLeavesNothing) {
  for (const char* recipe : {"bf16", "delayed"}) {
    config.faults.clear();
    const std::vector<Left> healthy = run(plan_of_recipe(recipe), false);
    flip_gradient(3, 27);
    const std::vector<Left> once = run(plan_of_recipe(recipe), false);
    differences.clear();
    const std::vector<Left> twice = run(plan_of_recipe(recipe), true);
    for (size_t i = 0; i < healthy.size(); ++i) {
      EXPECT_EQ(twice[i].weights, healthy[i].weights) << recipe << i;
      EXPECT_EQ(twice[i].loss, healthy[i].loss) << recipe << i;
      EXPECT_EQ(once[i].weights == healthy[i].weights, i < 2) << recipe << i;
      EXPECT_EQ(differences[i].empty(), i != 2) << differences[i];
    }
    EXPECT_THAT(differences[2],
                AllOf(HasSubstr("on " + host_name()), HasSubstr("the gradients of 1 of"),
                      HasSubstr(kFlippedParameter), HasSubstr("agrees with the second"),
                      Not(HasSubstr("loss"))));
  }
}

// The forward pass goes wrong, so that the loss, every gradient and what delayed scaling would
// remember are wrong: in the first computation of step 2, and in the second.
TEST_F(GradientsTwice, AWrongForwardPassLeavesNoTraceInScalingHistories) {
  const PrecisionPlan plan = plan_of_recipe("delayed");
  const std::vector<Left> healthy = run(plan, false);
  for (const auto& [pass, agrees] : {std::pair{5, "the second"}, std::pair{7, "the first"}}) {
    const BackendMakers backends{.bf16 = [pass = pass](int threads) {
      return std::make_unique<GlitchingBackend>(threads, pass);
    }};
    const std::unique_ptr<Engine> engine = start(plan, &backends);
    for (const Left& expected : healthy) {
      const StepResult result = engine->train_step(nullptr, true);
      EXPECT_EQ(left_by(*engine, result), expected) << pass << " " << expected.step;
      EXPECT_EQ(result.mismatch.empty(), expected.step != 2) << result.mismatch;
      if (result.mismatch.empty()) continue;
      EXPECT_THAT(result.mismatch,
                  AllOf(HasSubstr("the loss sum of micro-batch 0"),
                        HasSubstr("model.layers.1.mlp.down_proj.weight the first"),
                        HasSubstr("amaxes"), HasSubstr(std::string("agrees with ") + agrees)));
    }
  }
}

TEST_F(GradientsTwice, ThreeResultsAreNoStepAndChangeNothing) {
  const PrecisionPlan plan = plan_of_recipe("delayed");
  const std::vector<Left> healthy = run(plan, false);
  flip_gradient(3, 27);
  flip_gradient(3, 26);
  const std::unique_ptr<Engine> engine = start(plan);
  engine->train_step(nullptr, true);
  engine->train_step(nullptr, true);
  const std::string before = engine->checkpoint().trainer_state_json;
  const StepResult result = engine->train_step(nullptr, true);
  EXPECT_FALSE(result.committed);
  EXPECT_THAT(result.mismatch, AllOf(HasSubstr(kFlippedParameter), HasSubstr("with neither")));
  EXPECT_EQ(engine->step(), 2);
  EXPECT_EQ(engine->weights_hash(), healthy[1].weights);
  EXPECT_EQ(engine->checkpoint().trainer_state_json, before);
  // Each flip strikes once: what follows is the step as it should have been.
  EXPECT_EQ(engine->train_step(nullptr, true).weights_hash, healthy[2].weights);
}

}  // namespace
}  // namespace gnomon::test
