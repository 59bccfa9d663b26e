// Devices whose FP8 products are wrong, or not there. The replay that is there to rule out wrong
// ones must not use them; where the library has none, rounded values are multiplied in BF16.
#include <gtest/gtest.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/operands.h"
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
  makers.bf16 = [](int) { return cuda::make_backend(std::make_unique<MachineOf>()); };
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

bool is_part(cuda::FactorScale scale) {
  return scale != cuda::FactorScale::kNone && scale != cuda::FactorScale::kTensor;
}

// Has products of codes with one scale alone.
class PlainFp8Machine : public EmulatedMachine {
 public:
  static inline std::vector<cuda::Product> asked;

  bool multiplies(const cuda::Product& product, const cuda::Factor& a,
                  const cuda::Factor& b) override {
    asked.push_back(product);
    return !is_part(a.scale) && !is_part(b.scale);
  }
  void multiply(const cuda::Product& product, const cuda::Factor& a, const cuda::Factor& b,
                void* c) override {
    const bool has = a.format == Format::kBf16 || (!is_part(a.scale) && !is_part(b.scale));
    EXPECT_TRUE(has) << "a product that it does not have";
    EmulatedMachine::multiply(product, a, b, c);
  }
};

// And cannot add what it multiplies to what is there.
class AddingNoFp8Machine final : public PlainFp8Machine {
 public:
  bool multiplies(const cuda::Product& product, const cuda::Factor& a,
                  const cuda::Factor& b) override {
    return !product.accumulate && PlainFp8Machine::multiplies(product, a, b);
  }
};

class MissingFp8Kernel : public testing::TestWithParam<std::string> {};

TEST_P(MissingFp8Kernel, IsMadeUpForInBf16) {
  testing::internal::CaptureStderr();
  const Losses found = losses<PlainFp8Machine>(GetParam(), false);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(found, losses<EmulatedMachine>(GetParam(), true));
  EXPECT_NE(said.find("warning: emulated has no product of e4m3 with a scale for each"),
            std::string::npos)
      << said;
}

INSTANTIATE_TEST_SUITE_P(Recipes, MissingFp8Kernel, testing::Values("rowwise", "block"),
                         [](const auto& recipe) { return recipe.param; });

TEST(MissingFp8KernelTest, IsAskedForByTheRunsOwnShapes) {
  PlainFp8Machine::asked.clear();
  losses<PlainFp8Machine>("current", false);
  const auto was_asked = [](int64_t m, int64_t n, int64_t k, bool fp32, bool added) {
    return std::ranges::any_of(PlainFp8Machine::asked, [&](const cuda::Product& it) {
      return it.m == m && it.n == n && it.k == k && it.fp32_output == fp32 &&
             it.accumulate == added;
    });
  };
  const TemporaryDirectory directory;
  const EngineConfig config = small_engine(directory.path());
  const int64_t rows = config.batch.sequences * config.batch.tokens;
  const int64_t width = config.model.width, ffn = config.model.ffn;
  EXPECT_TRUE(was_asked(rows, width, ffn, false, false)) << "down_proj, fprop";
  EXPECT_TRUE(was_asked(rows, ffn, width, false, false)) << "down_proj, dgrad";
  EXPECT_TRUE(was_asked(width, ffn, rows, true, false)) << "down_proj, wgrad";
  EXPECT_TRUE(was_asked(width, ffn, rows, true, true)) << "of a later micro-batch";
  const int64_t last = config.heldout_sequences % config.batch.sequences * config.batch.tokens;
  ASSERT_GT(last, 0);
  EXPECT_TRUE(was_asked(last, width, ffn, false, false)) << "an evaluation's last batch";
}

// A vocabulary of 257 in BF16 beside layers in FP8.
TEST(MissingFp8KernelTest, AProductThatIsNeverInFp8IsNotAskedFor) {
  const Quantizer codes{Format::kE4m3, {0, 0}, ScaleRule::kFp32};
  PlainFp8Machine::asked.clear();
  PlainFp8Machine plain;
  cuda::OperandKernels asking(plain);
  asking.expect({{64, 257, 64, false}, {64, 128, 64, false}});
  EXPECT_TRUE(asking.multiplies(codes, codes, false, false));
  ASSERT_EQ(PlainFp8Machine::asked.size(), 1u);
  EXPECT_EQ(PlainFp8Machine::asked[0].n, 128);
  asking.expect({{64, 160, 64, false}});
  EXPECT_TRUE(asking.multiplies(codes, codes, false, false));
  EXPECT_EQ(PlainFp8Machine::asked.back().n, 160) << "another model's are asked for again";
}

TEST(MissingFp8KernelTest, OneOfTheThreeProductsMayBeMissing) {
  const Losses sound = losses<EmulatedMachine>("current", false);
  const Losses found = losses<AddingNoFp8Machine>("current", false);
  EXPECT_EQ(found.evaluated, sound.evaluated) << "fprop is not touched";
}

INSTANTIATE_TEST_SUITE_P(Recipes, BrokenFp8Kernel,
                         testing::Values("current", "delayed", "rowwise", "block"),
                         [](const auto& recipe) { return recipe.param; });

}  // namespace
}  // namespace gnomon::test
