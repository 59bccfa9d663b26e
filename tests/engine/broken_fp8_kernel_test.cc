// A device whose FP8 products are wrong: the replay that is there to rule that out must not use
// them.
#include <gtest/gtest.h>

#include "kernels/cuda/backend.h"
#include "tests/engine/emulated_machine.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

// Products of codes come out a tenth too large; those of BF16 are right.
class BrokenFp8Machine final : public EmulatedMachine {
 public:
  void multiply(const cuda::Product& product, const cuda::Factor& a, const cuda::Factor& b,
                void* c) override {
    cuda::Product made = product;
    if (a.format != Format::kBf16) made.alpha *= 1.1f;
    EmulatedMachine::multiply(made, a, b, c);
  }
};

template <class MachineOf>
BackendMakers backend_on() {
  BackendMakers makers;
  makers.bf16 = [](int threads) {
    return cuda::make_backend(std::make_unique<MachineOf>(), threads);
  };
  return makers;
}

struct Losses {
  double evaluated = 0;       // of the first weights
  std::vector<double> steps;  // of training
  bool operator==(const Losses&) const = default;
};

template <class MachineOf>
Losses losses(const std::string& recipe, bool fakequant) {
  const TemporaryDirectory directory;
  const BackendMakers backend = backend_on<MachineOf>();
  Engine engine(small_engine(directory.path()), EngineRole::kReplay, nullptr, &backend);
  engine.initialize();
  const PrecisionPlan plan = PrecisionPlan::parse(
      "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" + recipe +
      "\"\n");
  engine.set_plan(plan);
  engine.set_mode({.role = EngineRole::kReplay, .fakequant = fakequant});
  Losses found{engine.evaluate(plan), {}};
  for (int step = 0; step < 1; ++step) found.steps.push_back(engine.train_step().loss);
  return found;
}

class BrokenFp8Kernel : public testing::TestWithParam<std::string> {};

TEST_P(BrokenFp8Kernel, ShowsUnderThePlanAndNotInFakequant) {
  const Losses sound = losses<EmulatedMachine>(GetParam(), false);
  const Losses broken = losses<BrokenFp8Machine>(GetParam(), false);
  const Losses fake = losses<EmulatedMachine>(GetParam(), true);
  EXPECT_NE(broken.evaluated, sound.evaluated);
  EXPECT_EQ(losses<BrokenFp8Machine>(GetParam(), true), fake) << "no FP8 product in it";
  // Where the kernel is sound the two differ by rounding alone, where it is broken by more.
  const double healthy = std::abs(sound.evaluated - fake.evaluated);
  EXPECT_LT(healthy, 1e-3 * sound.evaluated);
  EXPECT_GT(std::abs(broken.evaluated - fake.evaluated), 10 * healthy);
}

INSTANTIATE_TEST_SUITE_P(Recipes, BrokenFp8Kernel,
                         testing::Values("current", "delayed", "rowwise", "block"),
                         [](const auto& recipe) { return recipe.param; });

}  // namespace
}  // namespace gnomon::test
