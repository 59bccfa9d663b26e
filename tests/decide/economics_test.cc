#include "controller/decide/economics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "tests/support/special_numbers.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;

const std::vector<double> kHazards = {1 / 5e3, 1 / 20e3, 1 / 100e3, 1 / 1e6};

// s = 1.35, K = 20, c = 30, m = 2, as in DECISION.md's example, and the H and R that it leaves out.
RunModel example() {
  RunModel model;
  model.speedup = 1.35;
  model.window_steps = 20;
  model.switch_steps = 30;
  model.delay_windows = 2;
  model.hold_steps = 500;
  model.restart_steps = 30;
  model.windows_between_false_alarms = kInfinity;
  return model;
}

RunModel spare_example(double share) {
  RunModel model = example();
  model.spare_share = share;
  return model;
}

// DECISION.md §5 as it stands: what is lost is counted from the fault, not from the checkpoint that
// the run goes back to.
double original_every(const RunModel& m, double hazard) {
  return std::sqrt((m.speedup * m.window_steps + m.switch_steps) /
                   (hazard * m.speedup * (m.delay_windows - 0.5)));
}
double original_net(const RunModel& m, double every, double hazard) {
  const double s = m.speedup;
  return s / (1 + (s * m.window_steps + m.switch_steps) / every +
              hazard * (s * ((m.delay_windows - 0.5) * every + m.window_steps) +
                        (s - 1) * m.hold_steps + m.restart_steps));
}

TEST(EconomicsTest, TheOriginalExampleFollowsFromTheOriginalFormulas) {
  const double hazards[] = {1 / 20e3, 1 / 100e3, 1 / 1e6};
  const double every[] = {750, 1678, 5305}, net[] = {1.16, 1.26, 1.32};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(original_every(example(), hazards[i]), every[i], 0.6);
    EXPECT_NEAR(original_net(example(), every[i], hazards[i]), net[i], 0.005);
  }
}

TEST(EconomicsTest, TheExampleWithTheWorkBeforeTheFaultCounted) {
  const double hazards[] = {1 / 20e3, 1 / 100e3, 1 / 1e6};
  const double closed[] = {649.8, 1453.0, 4594.7}, every[] = {685.2, 1486.5, 4627.0};
  const double net[] = {1.1437, 1.2500, 1.3171};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(best_every_closed_form(example(), hazards[i]), closed[i], 0.05);
    EXPECT_NEAR(best_every(example(), hazards[i]), every[i], 1);
    EXPECT_NEAR(net_speedup(example(), every[i], hazards[i]), net[i], 5e-5);
  }
}

TEST(EconomicsTest, TheClosedFormMinimisesTheFirstOrderCost) {
  RunModel model = example();
  model.windows_between_false_alarms = 500;
  for (double hazard : kHazards) {
    const double best = best_every_closed_form(model, hazard);
    const double cost = first_order_step_cost(model, best, hazard);
    for (double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0}) {
      EXPECT_GT(first_order_step_cost(model, best * factor, hazard), cost) << factor;
    }
  }
}

TEST(EconomicsTest, TheNumericalOptimumBeatsEveryCadenceOnAGrid) {
  RunModel dear = example();
  dear.windows_between_false_alarms = 20;
  for (const RunModel& model : {example(), dear, spare_example(0.05), spare_example(1)}) {
    for (double hazard : {0.0, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2}) {
      const double best = best_every(model, hazard, 1e7);
      const double cost = step_cost(model, best, hazard).total();
      EXPECT_GE(best, every_min(model));
      for (double every = every_min(model); every < 1e7; every *= 1.02) {
        ASSERT_LE(cost, step_cost(model, every, hazard).total() * (1 + 1e-9))
            << "every " << every << " beats " << best << " at " << hazard;
      }
    }
  }
}

TEST(EconomicsTest, TheClosedFormCostsNextToNothingBesideTheNumericalOptimum) {
  for (double hazard : {1 / 20e3, 1 / 100e3, 1 / 1e6}) {
    const double closed = net_speedup(example(), best_every_closed_form(example(), hazard), hazard);
    const double best = net_speedup(example(), best_every(example(), hazard), hazard);
    EXPECT_LE(closed, best);
    EXPECT_GT(closed, best - 5e-4);
  }
}

TEST(EconomicsTest, OneRareFaultCostsTheSameToFirstOrderUpToTheShareOfVerification) {
  for (double share : {0.0, 0.1}) {
    const RunModel model = spare_example(share);
    for (double every : {600.0, 3000.0}) {
      const double hazard = 1e-9;
      const auto of_fault = [&](auto cost) { return (cost(hazard) - cost(0)) / hazard; };
      const double first_order =
          of_fault([&](double at) { return first_order_step_cost(model, every, at); });
      const double exact = of_fault([&](double at) { return step_cost(model, every, at).total(); });
      EXPECT_NEAR(first_order, exact, (share > 0 ? 1e-4 : 57 / every) * exact);
    }
  }
}

TEST(EconomicsTest, WithoutFaultsAndFalseAlarmsOnlyVerificationIsPaid) {
  const StepCost cost = step_cost(example(), 570, 0);
  EXPECT_DOUBLE_EQ(cost.verification, 57.0 / 570);
  EXPECT_DOUBLE_EQ(cost.total(), 1.1);
  EXPECT_DOUBLE_EQ(step_cost(spare_example(0.25), 570, 0).total(), 1.25);
}

TEST(EconomicsTest, IdleSpareDevicesMayBeFree) {
  RunModel model = spare_example(0.25);
  model.spare_price = 0;
  EXPECT_DOUBLE_EQ(step_cost(model, 570, 0).total(), 1);
}

TEST(EconomicsTest, VerifyingEveryStepOnTheTrainersNeverPays) {
  RunModel model = example();
  for (double speedup : {1.05, 1.35, 2.0, 5.0}) {
    model.speedup = speedup;
    EXPECT_LT(net_speedup(model, model.window_steps, 0), 1);
    const double least = (speedup * model.window_steps + model.switch_steps) / (speedup - 1);
    EXPECT_NEAR(net_speedup(model, std::max(least, model.window_steps), 0), 1, 1e-12)
        << "the cadence has to be longer than V/(s − 1)";
  }
}

TEST(EconomicsTest, TheBreakEvenHazardIsWhereTheNetSpeedupIsOne) {
  RunModel dear = example();
  dear.windows_between_false_alarms = 100;
  for (const RunModel& model : {example(), dear, spare_example(0.05)}) {
    const double hazard = break_even_hazard(model);
    ASSERT_GT(hazard, 0);
    EXPECT_NEAR(net_speedup(model, best_every(model, hazard), hazard), 1, 1e-5);
    EXPECT_GT(net_speedup(model, best_every(model, hazard / 1.01), hazard / 1.01), 1);
    EXPECT_LT(net_speedup(model, best_every(model, hazard * 1.01), hazard * 1.01), 1);
  }
}

TEST(EconomicsTest, TheHoldDoesNotDecideWhetherFp8IsWorthIt) {
  RunModel longer = example();
  longer.hold_steps = 50'000;
  EXPECT_NEAR(break_even_hazard(longer) / break_even_hazard(example()), 1, 1e-3);
  EXPECT_LT(net_speedup(longer, 1000, 1e-5), net_speedup(example(), 1000, 1e-5));
}

TEST(EconomicsTest, TheClosedBreakEvenIsNearAndOnTheSafeSide) {
  for (double speedup : {1.1, 1.2, 1.35, 1.6}) {
    for (double alarms : {kInfinity, 200.0}) {
      RunModel model = example();
      model.speedup = speedup;
      model.windows_between_false_alarms = alarms;
      const double ratio = break_even_hazard_closed_form(model) / break_even_hazard(model);
      EXPECT_LT(ratio, 1) << speedup << ' ' << alarms;
      EXPECT_GT(ratio, 0.85) << speedup << ' ' << alarms;
    }
  }
}

TEST(EconomicsTest, Fp8ThatIsNotFasterIsNeverWorthIt) {
  for (double speedup : {0.3, 0.99, 1.0}) {
    RunModel model = example();
    model.speedup = speedup;
    EXPECT_EQ(break_even_hazard(model), 0);
    EXPECT_EQ(break_even_hazard_closed_form(model), 0);
    EXPECT_LT(net_speedup(model, best_every(model, 1e-5), 1e-5), 1);
  }
}

TEST(EconomicsTest, EveryCostMakesItDearer) {
  const std::vector<std::function<void(RunModel&)>> dearer = {
      [](RunModel& m) { m.window_steps *= 1.5; },
      [](RunModel& m) { m.switch_steps *= 1.5; },
      [](RunModel& m) { m.delay_windows *= 1.5; },
      [](RunModel& m) { m.hold_steps *= 1.5; },
      [](RunModel& m) { m.restart_steps *= 1.5; },
      [](RunModel& m) { m.windows_between_false_alarms = 100; },
  };
  for (double share : {0.0, 0.2}) {
    const RunModel base = spare_example(share);
    for (double hazard : {1 / 20e3, 1 / 100e3, 1 / 1e6}) {
      const double net = net_speedup(base, best_every(base, hazard), hazard);
      ASSERT_GT(net, 1) << "else a longer hold would be better";
      for (size_t i = 0; i < dearer.size(); ++i) {
        RunModel model = base;
        dearer[i](model);
        EXPECT_LT(net_speedup(model, best_every(model, hazard), hazard), net)
            << "cost " << i << ", hazard " << hazard << ", spare " << share;
      }
      EXPECT_LT(net_speedup(base, best_every(base, 1.5 * hazard), 1.5 * hazard), net);
      RunModel faster = base;
      faster.speedup *= 1.05;
      EXPECT_GT(net_speedup(faster, best_every(faster, hazard), hazard), net);
    }
  }
}

TEST(EconomicsTest, MoreFaultsAskForMoreWindowsAndDearerWindowsForFewer) {
  double before = kInfinity;
  for (double hazard : {1e-7, 1e-6, 1e-5, 1e-4}) {
    const double every = best_every(example(), hazard);
    EXPECT_LT(every, before);
    before = every;
    RunModel dearer = example();
    dearer.switch_steps *= 2;
    EXPECT_GT(best_every(dearer, hazard), every);
  }
}

TEST(EconomicsTest, SpareDevicesVerifyAsOftenAsTheyCan) {
  const RunModel model = spare_example(0.1);
  EXPECT_DOUBLE_EQ(every_min(model), 1.35 * 20 / 0.1 + 30);
  EXPECT_DOUBLE_EQ(best_every(model, 1e-5), every_min(model));
  EXPECT_DOUBLE_EQ(every_min(spare_example(1000)), 30.027);
}

TEST(EconomicsTest, TheBestSpareShareIsNearTheOneFoundBySearch) {
  for (double hazard : {1 / 20e3, 1 / 100e3, 1 / 1e6}) {
    double best = 0;
    for (double share = 1e-3; share < 1; share *= 1.02) {
      const RunModel model = spare_example(share);
      best = std::max(best, net_speedup(model, every_min(model), hazard));
    }
    const RunModel model = spare_example(best_spare_share(example(), hazard));
    EXPECT_GT(net_speedup(model, every_min(model), hazard), best - 1e-3);
  }
}

TEST(EconomicsTest, ALossGapIsWorthCompute) {
  EXPECT_NEAR(compute_factor(0.1), 1.0202, 5e-5);
  EXPECT_NEAR(compute_factor(0.25), 1.0512, 5e-5);
  EXPECT_EQ(compute_factor(-0.3), 1);
  EXPECT_NEAR(compute_factor(21, 1), 1.21, 1e-12);
}

void expect_refused(const std::function<void()>& call, const std::string& key) {
  try {
    call();
    ADD_FAILURE() << key << " was accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), key);
    EXPECT_THAT(error.what(), HasSubstr("expected"));
  }
}

TEST(EconomicsTest, NonsenseIsRefusedByName) {
  const struct {
    const char* key;
    double RunModel::*field;
    std::vector<double> values;
  } cases[] = {
      {"speedup", &RunModel::speedup, {0, -1, 1e3, NAN, kInfinity}},
      {"window steps", &RunModel::window_steps, {0, -5, NAN, kInfinity}},
      {"switch steps", &RunModel::switch_steps, {-1, NAN, kInfinity}},
      {"delay windows", &RunModel::delay_windows, {0, 0.5, -2, NAN, kInfinity}},
      {"hold steps", &RunModel::hold_steps, {-1, NAN, kInfinity}},
      {"restart steps", &RunModel::restart_steps, {-1, NAN, kInfinity}},
      {"windows between false alarms", &RunModel::windows_between_false_alarms, {0, 1, -3, NAN}},
      {"spare share", &RunModel::spare_share, {-0.1, 1e-9, NAN, kInfinity}},
      {"spare price", &RunModel::spare_price, {-1, NAN, kInfinity}},
  };
  for (const auto& one : cases) {
    for (double value : one.values) {
      RunModel model = example();
      model.*one.field = value;
      expect_refused([&] { check_model(model); }, one.key);
      expect_refused([&] { step_cost(model, 1000, 1e-5); }, one.key);
    }
  }
  for (double hazard : {-1e-9, 1.5, static_cast<double>(NAN), kInfinity}) {
    expect_refused([&] { net_speedup(example(), 1000, hazard); }, "hazard");
    expect_refused([&] { best_every_closed_form(example(), hazard); }, "hazard");
  }
  for (double every : {0.0, 19.9, -1.0, static_cast<double>(NAN), kInfinity}) {
    expect_refused([&] { step_cost(example(), every, 1e-5); }, "every");
  }
  expect_refused([] { step_cost(spare_example(0.1), 299, 1e-5); }, "every");
  expect_refused([] { compute_factor(NAN); }, "loss gap");
  expect_refused([] { compute_factor(0.1, 0); }, "loss exponent");
}

TEST(EconomicsTest, NoModelInRangeMakesANumberThatIsNotFinite) {
  for (double speedup : {0.01, 1.0, 100.0}) {
    for (double big : {0.0, 1e9}) {
      for (double share : {0.0, 1e-6, 1e3}) {
        for (double alarms : {2.0, 1e12, kInfinity}) {
          const RunModel model = {speedup, 1 + big / 10, big, 1e6, big, big, alarms, share, 1};
          for (double hazard : {0.0, 1e-300, 1e-9, 1.0}) {
            const double cost = step_cost(model, every_min(model), hazard).total();
            EXPECT_TRUE(std::isfinite(cost))
                << speedup << ' ' << big << ' ' << share << ' ' << alarms << ' ' << hazard;
            EXPECT_GT(cost, 0);
          }
        }
      }
    }
  }
}

TEST(EconomicsTest, HazardsReadAsPeopleWriteThem) {
  EXPECT_EQ(hazard_in_words(1 / 20e3), "1/20k");
  EXPECT_EQ(hazard_in_words(1 / 1.5e6), "1/1.5M");
  EXPECT_EQ(hazard_in_words(1 / 1e6), "1/1M");
  EXPECT_EQ(hazard_in_words(0.01), "1/100");
  EXPECT_EQ(hazard_in_words(0), "0");
}

}  // namespace
}  // namespace gnomon::decide
