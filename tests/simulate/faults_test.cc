#include "lab/simulate/faults.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/errors.h"
#include "tests/simulate/tallies.h"

namespace gnomon::simulate {
namespace {

TEST(FaultsTest, TheSameSeedGivesTheSameFaultsAndAnotherSeedOthers) {
  RunModel model;
  model.hazards.fill(1e-3);
  const std::vector<Fault> first = draw_faults(model, 7), again = draw_faults(model, 7),
                           other = draw_faults(model, 8);
  ASSERT_EQ(first.size(), again.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].from, again[i].from);
    EXPECT_EQ(first[i].sites, again[i].sites);
    EXPECT_EQ(first[i].size, again[i].size);
  }
  EXPECT_NE(first.front().from, other.front().from);
}

TEST(FaultsTest, TheRateOfOneKindLeavesTheOthersAsTheyWere) {
  RunModel one = with_fault(FaultKind::kBitFlip, 1e-3);
  const RunModel both = with_fault(FaultKind::kNumerics, 1e-3, one);
  const std::vector<Fault> alone = draw_faults(one, 3);
  std::vector<Fault> together = draw_faults(both, 3);
  std::erase_if(together, [](const Fault& fault) { return fault.kind != FaultKind::kBitFlip; });
  ASSERT_EQ(alone.size(), together.size());
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].from, together[i].from);
}

TEST(FaultsTest, TheyComeAsOftenAsTheRateSays) {
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    const RunModel model = with_fault(static_cast<FaultKind>(kind), 1e-3);
    double count = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      for (const Fault& fault : draw_faults(model, seed))
        count += fault.from <= model.steps ? 1 : 0;
    }
    const double expected = 100 * 1e-3 * static_cast<double>(model.steps);
    EXPECT_NEAR(count, expected, 4 * std::sqrt(expected)) << fault_kind_names()[kind];
  }
}

TEST(FaultsTest, EachIsWithinItsModel) {
  RunModel model;
  model.hazards.fill(1e-3);
  model.layers = 2;
  model.size_low = 0.5;
  model.size_high = 4;
  int64_t last = 0;
  for (const Fault& fault : draw_faults(model, 11)) {
    EXPECT_GE(fault.from, last);
    last = fault.from;
    EXPECT_GT(fault.to, fault.from);
    EXPECT_GT(fault.size, 0);
    EXPECT_GE(std::popcount(fault.sites), 1);
    EXPECT_LE(std::popcount(fault.sites), 3);
    EXPECT_EQ(fault.sites >> (7 * model.layers + 1), 0u);
    if (fault.kind == FaultKind::kNumerics) {
      EXPECT_GE(fault.size * kSizeSteps, 0.5);
      EXPECT_LE(fault.size * kSizeSteps, 4);
    }
  }
}

TEST(RunModelTest, WhatIsOutOfRangeIsRefusedByName) {
  const auto refused = [](void (*change)(RunModel&), const char* key) {
    RunModel model;
    change(model);
    try {
      check_model(model);
      ADD_FAILURE() << key << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.key(), key);
      EXPECT_FALSE(error.accepted().empty());
    }
  };
  check_model(RunModel());
  refused([](RunModel& m) { m.steps = 0; }, "steps");
  refused([](RunModel& m) { m.layers = 10; }, "layers");
  refused([](RunModel& m) { m.autocorrelation = 1; }, "autocorrelation");
  refused([](RunModel& m) { m.noise = "pink"; }, "noise");
  refused([](RunModel& m) { m.noise_percent = NAN; }, "noise-percent");
  refused([](RunModel& m) { m.hazards[4] = 0.5; }, "rate of bit_flip");
  refused([](RunModel& m) { m.size_high = 0.1; }, "fault-size");
  refused([](RunModel& m) { m.verifiers = -1; }, "verifiers");
  EXPECT_THROW(fault_kind_from_name("gremlin"), ConfigError);
  EXPECT_EQ(fault_kind_from_name("kernel_bug"), FaultKind::kKernelBug);
}

}  // namespace
}  // namespace gnomon::simulate
