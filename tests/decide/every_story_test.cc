// What must hold in every story, whatever it tells.
#include <gtest/gtest.h>

#include "tests/decide/stories.h"

namespace gnomon::decide {
namespace {

class EveryStory : public ::testing::TestWithParam<Story> {};

TEST_P(EveryStory, GoesOnTheSameWhenTheStateIsWrittenAndReadBetweenAnyTwoEvents) {
  SimulatedRun straight(GetParam().truth, GetParam().policy);
  GetParam().tell(straight);
  SimulatedRun restored(GetParam().truth, GetParam().policy);
  restored.through_json = true;
  GetParam().tell(restored);
  ASSERT_EQ(straight.log.size(), restored.log.size());
  EXPECT_EQ(straight.log, restored.log);
  EXPECT_EQ(state_to_json(straight.state), state_to_json(restored.state));
  EXPECT_EQ(state_to_json(state_from_json(state_to_json(straight.state))),
            state_to_json(straight.state));
}

TEST_P(EveryStory, DecidesTheSameWhenItsEventsAreReplayed) {
  SimulatedRun run(GetParam().truth, GetParam().policy);
  GetParam().tell(run);
  State state;
  std::vector<std::string> log;
  size_t heard = 0;
  for (const Event& event : run.events) {
    Outcome outcome = decide(std::move(state), event, GetParam().policy, run.times[heard++]);
    state = std::move(outcome.state);
    for (const Effect& effect : outcome.effects)
      log.push_back(effect_type(effect) + " " + effect_to_json(effect));
  }
  EXPECT_EQ(log, run.log);
}

TEST_P(EveryStory, HearingEverythingTwiceChangesNothing) {
  SimulatedRun run(GetParam().truth, GetParam().policy);
  GetParam().tell(run);
  State state;
  std::vector<std::string> log;
  size_t heard = 0;
  for (const Event& event : run.events) {
    const double now = run.times[heard++];
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

INSTANTIATE_TEST_SUITE_P(Stories, EveryStory, ::testing::ValuesIn(all_stories()),
                         [](const auto& story) { return story.param.name; });

}  // namespace
}  // namespace gnomon::decide
