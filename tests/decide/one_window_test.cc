// What one window shows by itself: of its own weights and batches, which nudged replays share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/philox.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kSteps = 60000;

// Windows of FP8 lie `mean` above BF16, give or take `spread`, and rounding adds -0.15 to 0.35.
Truth wide_windows(double mean, double spread) {
  Truth truth;
  truth.total_steps = kSteps;
  truth.noise_percent = 0.5;
  truth.of_window = [=](int64_t start) {
    const double u = philox_uniform(philox(7, 1, static_cast<uint64_t>(start))[0]);
    return mean + spread * (2 * u - 1);
  };
  return truth;
}

SimulatedRun run_of(const Truth& truth) {
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(kSteps);
  run.end();
  return run;
}

int64_t alarms_of(const SimulatedRun& run, const std::string& words) {
  int64_t found = 0;
  for (const RecordDecision& alarm : run.decisions("alarm")) {
    found += alarm.sentence.find(words) != std::string::npos;
  }
  return found;
}

TEST(OneWindow, WideOnesThatRoundingLiftsOverTheCeilingAreNoVerdict) {
  const SimulatedRun run = run_of(wide_windows(0.05, 0.68));
  EXPECT_GE(alarms_of(run, "one window may not"), 10) << "too few to say anything";
  EXPECT_TRUE(run.directives("set_plan").empty()) << run.decisions("verdict").back().sentence;
  EXPECT_TRUE(run.directives("rollback").empty());
  for (const RecordDecision& verdict : run.decisions("verdict"))
    EXPECT_EQ(verdict.verdict, "chance") << verdict.sentence;
}

// A fault that some windows show over the ceiling, and that is there before D's deviation is known.
TEST(OneWindow, AFaultUnderTheCeilingIsFoundByTheWindowsThatFollowOne) {
  SimulatedRun run(wide_windows(0.85, 0.1), with([](Policy& p) { p.window.every = 0; }));
  run.start();
  run.train_until_phase("contained", kSteps);
  const auto verdicts = run.decisions("verdict");
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts.front().verdict, "chance") << verdicts.front().sentence;
  EXPECT_EQ(verdicts.back().verdict, "fp8_numerics") << verdicts.back().sentence;
  EXPECT_LE(verdicts.back().step, 500);
}

}  // namespace
}  // namespace gnomon::decide
