// The economics' formulas against a run that is played step by step: it knows windows, faults and
// checkpoints, and none of the formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>

#include "controller/decide/economics.h"
#include "tests/support/special_numbers.h"

namespace gnomon::decide {
namespace {

struct Cycle {
  double seconds = 0;
  double useful = 0;
};

// One FP8 stretch, from a verified start to the return after the alarm.
class Player {
 public:
  Player(const RunModel& model, int64_t every, double hazard, uint64_t seed)
      : model_(model), every_(every), fault_(1 - std::exp(-hazard)), random_(seed) {}

  Cycle play() {
    const int64_t window = static_cast<int64_t>(model_.window_steps);
    bool damaged = false, damaged_at_start = false, alarm = false;
    int64_t step = 0, good = 0;
    double seconds = 0;
    while (!alarm) {
      if (step % every_ == 0) damaged_at_start = damaged;
      damaged = happens(fault_) || damaged;
      ++step;
      seconds += 1;
      if (step % every_ != window % every_) continue;
      seconds += verification();
      // Whole windows with the fault in them alarm with a chance of 1/m: m of them on average.
      alarm = damaged_at_start ? happens(1 / model_.delay_windows)
                               : !damaged && happens(1 / model_.windows_between_false_alarms);
      if (!damaged && !alarm) good = step;
    }
    const double late = latency();
    const double lost = static_cast<double>(step - good) + late;
    seconds += late + model_.speedup * (lost + model_.hold_steps) + model_.restart_steps;
    return {seconds * (1 + model_.spare_share * model_.spare_price),
            static_cast<double>(step) + late + model_.hold_steps};
  }

 private:
  bool happens(double probability) { return uniform_(random_) < probability; }
  double verification() const {
    return model_.spare_share > 0 ? 0 : model_.speedup * model_.window_steps + model_.switch_steps;
  }
  double latency() const {
    if (model_.spare_share == 0) return 0;
    return model_.speedup * model_.window_steps / model_.spare_share + model_.switch_steps;
  }

  RunModel model_;
  int64_t every_;
  double fault_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_;
};

struct Estimate {
  double cost = 0;   // per useful step
  double error = 0;  // its standard error, of the ratio of two means
};

Estimate play_many(const RunModel& model, int64_t every, double hazard, int cycles) {
  Player player(model, every, hazard, 20261121);
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (int i = 0; i < cycles; ++i) {
    const Cycle cycle = player.play();
    x += cycle.useful, y += cycle.seconds;
    xx += cycle.useful * cycle.useful, yy += cycle.seconds * cycle.seconds;
    xy += cycle.useful * cycle.seconds;
  }
  const double ratio = y / x;
  return {ratio, std::sqrt(yy - 2 * ratio * xy + ratio * ratio * xx) / x};
}

struct Case {
  const char* name;
  RunModel model;
  int64_t every;
  double hazard;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

//                     s    K   c  m  H    R   A         g    price
const Case kCases[] = {
    {"typical", {1.35, 20, 30, 2, 500, 30, kInfinity, 0, 1}, 200, 1 / 4000.0},
    {"alarms_at_once", {1.5, 10, 5, 1, 100, 10, kInfinity, 0, 1}, 100, 1 / 2000.0},
    {"slow_detector", {1.35, 20, 30, 6, 0, 0, kInfinity, 0, 1}, 150, 1 / 3000.0},
    {"every_step_verified", {1.35, 20, 30, 2, 50, 30, kInfinity, 0, 1}, 20, 1 / 500.0},
    {"window_of_half_the_time", {1.2, 100, 3, 1.5, 20, 3, kInfinity, 0, 1}, 200, 1 / 400.0},
    {"false_alarms_only", {1.35, 20, 30, 2, 100, 30, 25, 0, 1}, 100, 0},
    {"false_and_true_alarms", {1.35, 20, 30, 2, 100, 30, 25, 0, 1}, 100, 1 / 2500.0},
    {"spare_devices", {1.35, 20, 30, 2, 200, 30, 200, 0.2, 1}, 165, 1 / 3000.0},
    {"faults_all_the_time", {1.35, 20, 30, 2, 500, 30, kInfinity, 0, 1}, 200, 1 / 50.0},
};

class EconomicsSimulationTest : public ::testing::TestWithParam<Case> {};

TEST_P(EconomicsSimulationTest, TheFormulaIsWithinTheSimulationsError) {
  const Case& one = GetParam();
  const Estimate played = play_many(one.model, one.every, one.hazard, 12'000);
  const double formula = step_cost(one.model, static_cast<double>(one.every), one.hazard).total();
  EXPECT_LT(played.error, 4e-3 * played.cost) << "the simulation is too short to say anything";
  EXPECT_LT(std::abs(formula - played.cost), 3.5 * played.error)
      << "formula " << formula << ", played " << played.cost << " ± " << played.error;
}

INSTANTIATE_TEST_SUITE_P(Runs, EconomicsSimulationTest, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

TEST(EconomicsSimulationTest, ALossCountedFromTheFaultOnlyWouldBeToldApart) {
  const RunModel m = {1.35, 20, 30, 2, 0, 0, kInfinity, 0, 1};
  const double hazard = 1 / 20e3, every = 650;
  const Estimate played = play_many(m, 650, hazard, 4000);
  const double from_fault = 1 + (m.speedup * m.window_steps + m.switch_steps) / every +
                            hazard * m.speedup * ((m.delay_windows - 0.5) * every + m.window_steps);
  EXPECT_GT(played.cost - from_fault, 5 * played.error);
  EXPECT_LT(std::abs(first_order_step_cost(m, every, hazard) - played.cost), 0.005);
}

}  // namespace
}  // namespace gnomon::decide
