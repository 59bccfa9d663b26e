// What must hold in every scenario, whatever it tells.
#include <gtest/gtest.h>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

class EveryScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(EveryScenario, GoesOnTheSameWhenTheStateIsWrittenAndReadBetweenAnyTwoEvents) {
  SimulatedRun straight(GetParam().truth, GetParam().policy);
  GetParam().play(straight);
  SimulatedRun restored(GetParam().truth, GetParam().policy);
  restored.through_json = true;
  GetParam().play(restored);
  ASSERT_EQ(straight.log.size(), restored.log.size());
  EXPECT_EQ(straight.log, restored.log);
  EXPECT_EQ(state_to_json(straight.state), state_to_json(restored.state));
  EXPECT_EQ(state_to_json(state_from_json(state_to_json(straight.state))),
            state_to_json(straight.state));
}

TEST_P(EveryScenario, DecidesTheSameWhenItsEventsAreReplayed) {
  SimulatedRun run(GetParam().truth, GetParam().policy);
  GetParam().play(run);
  State state;
  std::vector<std::string> log;
  size_t played = 0;
  for (const Event& event : run.events) {
    Outcome outcome = decide(std::move(state), event, GetParam().policy, run.times[played++]);
    state = std::move(outcome.state);
    for (const Effect& effect : outcome.effects)
      log.push_back(effect_type(effect) + " " + effect_to_json(effect));
  }
  EXPECT_EQ(log, run.log);
}

TEST_P(EveryScenario, RepeatedEventsChangeNothing) {
  SimulatedRun run(GetParam().truth, GetParam().policy);
  GetParam().play(run);
  State state;
  std::vector<std::string> log;
  size_t played = 0;
  for (const Event& event : run.events) {
    const double now = run.times[played++];
    for (int time = 0; time < 2; ++time) {
      Outcome outcome = decide(std::move(state), event, GetParam().policy, now);
      state = std::move(outcome.state);
      for (const Effect& effect : outcome.effects)
        log.push_back(effect_type(effect) + " " + effect_to_json(effect));
      EXPECT_TRUE(time == 0 || outcome.effects.empty())
          << event_type(event) << " " << event_to_json(event);
    }
  }
  EXPECT_EQ(log, run.log);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, EveryScenario, ::testing::ValuesIn(all_scenarios()),
                         [](const auto& scenario) { return scenario.param.name; });

}  // namespace
}  // namespace gnomon::decide
