// Rehearsals of what an action has to show: whole runs of a tiny engine whose faults are several,
// or are there from the first step, or are no faults of FP8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>

#include "lab/rehearsal/rehearsal.h"
#include "tests/cli/traced.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

using rehearsal::RunSetup;
using rehearsal::Trace;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

class ContainmentRehearsalTest : public ::testing::Test {
 protected:
  // Two layers of width 32, 160 steps, a window every ten of them.
  RunSetup tiny() {
    RunSetup setup;
    setup.configuration = "tiny";
    setup.engine = small_engine(directory_.path());
    setup.engine.batch = {.sequences = 8, .tokens = 16, .accumulation = 1};
    setup.engine.optimizer.total_steps = 160;
    setup.engine.optimizer.warmup_steps = 10;
    setup.plan = PrecisionPlan::fp8();
    setup.policy.window = {.every = 10, .steps = 10};
    setup.policy.detector.burn_in_steps = 20;
    setup.steps = 160;
    setup.checkpoint_every = 10;
    setup.scratch = directory_.path() / "scratch";
    return setup;
  }

  static Fault scale(const std::string& site, int64_t start_step, int log2_factor) {
    Fault fault;
    fault.kind = FaultKind::kScaleShift;
    fault.site = site;
    fault.start_step = start_step;
    fault.log2_factor = log2_factor;
    return fault;
  }

  static std::string down(int layer) {
    return "model.layers." + std::to_string(layer) + ".mlp.down_proj";
  }

  TemporaryDirectory directory_;
};

// The sites that attributions name, over all of them.
std::vector<std::string> blamed(const Trace& trace) {
  std::vector<std::string> result;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind != "attribution") continue;
    result.insert(result.end(), each.decision.sites.begin(), each.decision.sites.end());
  }
  return result;
}

std::vector<std::string> reasons_of(const Trace& trace, const std::string& kind) {
  std::vector<std::string> result;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind == kind) result.push_back(each.decision.sentence);
  }
  return result;
}

// D after the run was said to have recovered for good.
std::vector<double> afterwards(const Trace& trace) {
  int64_t attempt = 0;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind == "recovered") attempt = each.decision.attempt;
  }
  std::vector<double> all;
  for (const auto& window : trace.windows) {
    const bool counts = window.kind == "shadow" && window.attempt >= attempt && attempt > 0;
    if (counts && window.d_percent) all.push_back(*window.d_percent);
  }
  return all;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return values.empty() ? HUGE_VAL : sum / static_cast<double>(values.size());
}

TEST_F(ContainmentRehearsalTest, TwoFaultsOfDifferentStrengthAreBothPinned) {
  for (const auto& [first, second] : {std::pair{8, 6}, std::pair{6, 8}}) {
    SCOPED_TRACE(first);
    RunSetup setup = tiny();
    setup.engine.faults = {scale(down(0), 61, first), scale(down(1), 61, second)};
    const Trace trace = rehearsal::rehearse(setup);
    EXPECT_THAT(actions_of(trace), Each("pin"));
    EXPECT_THAT(actions_of(trace), Not(IsEmpty()));
    EXPECT_THAT(blamed(trace), IsSupersetOf({down(0), down(1)}));
    EXPECT_LE(mean(afterwards(trace)), setup.policy.detector.tolerance_percent);
    EXPECT_EQ(trace.result.outcome, "completed");
  }
}

TEST_F(ContainmentRehearsalTest, AFaultFromTheFirstStepIsGoneBackBehind) {
  RunSetup setup = tiny();
  setup.policy.detector.burn_in_steps = 60;
  setup.engine.faults = {scale(down(1), 1, 8)};
  const Trace trace = rehearsal::rehearse(setup);
  EXPECT_THAT(actions_of(trace), Not(IsEmpty()));
  EXPECT_THAT(actions_of(trace), Each("pin"));
  EXPECT_THAT(blamed(trace), Contains(down(1)));
  int64_t first = INT64_MAX;  // start of the first window that loses more than is tolerated
  for (const auto& window : trace.windows) {
    if (window.d_percent.value_or(0) > setup.policy.detector.tolerance_percent)
      first = std::min(first, window.start_step);
  }
  for (const auto& each : trace.decisions) {
    if (each.decision.kind != "action") continue;
    const auto evidence = boost::json::parse(each.decision.evidence).as_object();
    EXPECT_LE(evidence.at("to_step").as_int64(), first);
  }
  for (const auto& window : trace.windows) {
    if (window.outcome != "quiet") continue;
    EXPECT_LE(window.d_percent.value_or(0), setup.policy.detector.ceiling_percent);
  }
}

TEST_F(ContainmentRehearsalTest, ALoaderThatStandsStillHoldsTheRun) {
  RunSetup setup = tiny();
  setup.policy.detector.ceiling_percent = 0.3;
  for (int64_t step = 65; step < 95; ++step) {
    Fault stuck;
    stuck.kind = FaultKind::kSkippedBatch;
    stuck.start_step = step;
    stuck.end_step = step + 1;
    stuck.steps = 95 - step;
    setup.engine.faults.push_back(stuck);
  }
  const Trace trace = rehearsal::rehearse(setup);
  EXPECT_THAT(actions_of(trace), ElementsAre("rollback", "rollback", "hold"));
  EXPECT_EQ(trace.result.outcome, "held");
  EXPECT_THAT(trace.decisions.back().decision.evidence, ::testing::HasSubstr("\"batches\":[{"));
}

TEST_F(ContainmentRehearsalTest, ALearningRateThatNoPrecisionBearsIsSaidAndBlamesNobody) {
  RunSetup setup = tiny();
  setup.engine.optimizer.learning_rate = 1;
  const Trace trace = rehearsal::rehearse(setup);
  std::vector<std::string> verdicts;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind == "verdict") verdicts.push_back(each.decision.verdict);
  }
  EXPECT_THAT(verdicts, Contains("unstable_training"));
  EXPECT_THAT(verdicts, Not(Contains("fp8_numerics")));
  EXPECT_THAT(actions_of(trace), IsEmpty());
}

// Small second moments become zero, and updates are divided by their root, until step 120.
TEST_F(ContainmentRehearsalTest, SpoiltSecondMomentsAreNamedPinnedAndGivenBack) {
  RunSetup setup = tiny();
  setup.plan = setup.plan.with_run({.first_moment = "fp8", .second_moment = "fp8"});
  setup.policy.returning.quiet_windows = 2;
  setup.steps = 400;
  setup.engine.optimizer.total_steps = 400;
  Fault fault;
  fault.kind = FaultKind::kFp8SecondMoment;
  fault.site = "*";
  fault.format = "e4m3";
  fault.log2_factor = -14;
  fault.start_step = 61;
  fault.end_step = 121;
  setup.engine.faults = {fault};
  const Trace trace = rehearsal::rehearse(setup);
  EXPECT_THAT(actions_of(trace), Each("pin"));
  EXPECT_THAT(blamed(trace), ElementsAre("optimizer.second_moment"));
  EXPECT_THAT(reasons_of(trace, "attribution"),
              ElementsAre(::testing::HasSubstr("Blamed: FP8 second moments")));
  EXPECT_THAT(reasons_of(trace, "recovered"), ::testing::SizeIs(1));
  EXPECT_THAT(reasons_of(trace, "return"), ::testing::SizeIs(1));
  EXPECT_LE(mean(afterwards(trace)), setup.policy.detector.tolerance_percent);
  EXPECT_EQ(trace.result.outcome, "completed");
}

}  // namespace
}  // namespace gnomon::test
