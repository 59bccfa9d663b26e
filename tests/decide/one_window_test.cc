// What one window's own weights and batches add to its gap: its nudged replays share it.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kSteps = 60000;

TEST(OneWindow, WideOnesThatRoundingLiftsOverTheCeilingAreNoVerdict) {
  SimulatedRun run(wide_windows(kSteps, 0.05, 0.68), scenario_policy());
  run.start();
  run.train_until(kSteps);
  run.end();
  const auto alarms = run.decisions("alarm");
  EXPECT_GE(std::ranges::count_if(alarms,
                                  [](const RecordDecision& alarm) {
                                    return alarm.sentence.find("one window may not") !=
                                           std::string::npos;
                                  }),
            10)
      << "too few to say anything";
  EXPECT_TRUE(run.directives("set_plan").empty()) << run.decisions("verdict").back().sentence;
  EXPECT_TRUE(run.directives("rollback").empty());
  for (const RecordDecision& verdict : run.decisions("verdict"))
    EXPECT_EQ(verdict.verdict, "chance") << verdict.sentence;
}

// A fault that some windows show over the ceiling, and that is there before D's deviation is known.
TEST(OneWindow, AFaultUnderTheCeilingIsFoundByTheWindowsThatFollowOne) {
  SimulatedRun run(wide_windows(kSteps, 0.85, 0.1), with([](Policy& p) { p.window.every = 0; }));
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
