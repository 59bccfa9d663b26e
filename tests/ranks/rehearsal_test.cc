// A run of several ranks under the real decision core: what is wrong with the wire is found by
// replays of as many ranks.
#include "lab/rehearsal/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "tests/ranks/ranks.h"

namespace gnomon::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<decide::RecordDecision> decisions_of(const rehearsal::Trace& trace,
                                                 const std::string& kind) {
  std::vector<decide::RecordDecision> found;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind == kind) found.push_back(each.decision);
  }
  return found;
}

// All gradients become as large as each other, until step 120: that costs 1.3% in a window, with
// little chance in it. To lose all but the largest ones costs from nothing to 2%, as processors
// sum.
TEST(WireRehearsal, AWireWhoseScaleIsOffIsNamedPinnedAndGivenBack) {
  TemporaryDirectory directory;
  rehearsal::RunSetup setup;
  setup.configuration = "tiny";
  setup.engine = small_engine(directory.path());
  setup.engine.batch = {.sequences = 4, .tokens = 16, .accumulation = 2};
  setup.engine.optimizer.total_steps = 400;
  setup.engine.optimizer.warmup_steps = 10;
  setup.engine.faults = {
      {.kind = FaultKind::kWireScaleShift, .start_step = 61, .end_step = 121, .log2_factor = -14}};
  setup.plan = PrecisionPlan::fp8().with_run({.gradients = "e4m3"});
  setup.policy.window = {.every = 10, .steps = 10};
  setup.policy.detector.burn_in_steps = 20;
  setup.policy.attribution.scores = false;
  setup.policy.returning.quiet_windows = 2;
  setup.steps = 400;
  setup.checkpoint_every = 10;
  setup.scratch = directory.path() / "scratch";
  setup.ranks = &ranks();
  const rehearsal::Trace trace = rehearsal::rehearse(setup);

  const auto blame = decisions_of(trace, "attribution");
  ASSERT_THAT(blame, SizeIs(1));
  EXPECT_THAT(blame[0].sites, ElementsAre("communication.gradients"));
  EXPECT_THAT(blame[0].sentence, HasSubstr("Blamed: gradients sent as E4M3"));
  const auto actions = decisions_of(trace, "action");
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].action, "pin");
  EXPECT_THAT(decisions_of(trace, "recovered"), SizeIs(1));
  EXPECT_THAT(decisions_of(trace, "return"), SizeIs(1));
  EXPECT_EQ(trace.result.outcome, "completed");
}

}  // namespace
}  // namespace gnomon::test
