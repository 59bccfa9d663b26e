// The decision core under events in any order, of any attempt, with any number: it may refuse to
// act, never act without evidence, never grow without bound, and never forget what it promised.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/decide/invariants.h"
#include "tests/decide/scenarios.h"
#include "tests/support/words.h"

namespace gnomon::decide {
namespace {

class EventGenerator {
 public:
  // A calm run's trainer reports in order and seldom breaks, so that windows are measured; any
  // other run's reports make little sense.
  EventGenerator(uint64_t seed, bool overrides, bool calm)
      : random_(seed), overrides_(overrides), calm_(calm) {}

  Event next(const State& s, double now) {
    if (overrides_ && pick(0, 19) == 0) return override_at(now);
    if (overrides_ && now >= next_deadline(s)) return Tick{};
    const int64_t kind = pick(0, 16);
    switch (calm_ && kind < 2 && pick(0, 9) > 0 ? 2 : kind) {
      case 0:
        return RunRegisteredEvent{"run", plan(), site_names(2), 2, (calm_ ? 1 : pick(0, 3)) * 10,
                                  1000};
      case 1:
        return AttemptStarted{s.attempt.number + pick(-1, 2),
                              std::max<int64_t>(0, s.newest_step - pick(0, 60)),
                              pick(0, 1) == 0 ? "rollback" : "restart", pick(1, 4)};
      case 2:
      case 3:
      case 4:
      case 5:
        if (calm_) {
          return StepReported{s.attempt.number, s.newest_step + 1, s.plan_version, loss(), 1};
        }
        return StepReported{s.attempt.number + (pick(0, 30) == 0 ? 1 : 0),
                            s.newest_step + pick(0, 3), pick(1, 3), loss(), loss()};
      case 6:
      case 7:
      case 8:
        return checkpoint(s);
      case 9:
        return ReplayFailed{replay(s), pick(0, 50), "bf16", "random"};
      case 10:
        if (!s.expired_directives.empty() && pick(0, 3) == 0) {
          return DirectiveChanged{s.expired_directives.front().number,
                                  pick(0, 1) == 0 ? DirectiveState("applied") : "rejected",
                                  s.attempt.number, s.newest_step, "late"};
        }
        if (!s.operator_directives.empty() && pick(0, 1) == 0) {
          return DirectiveChanged{s.operator_directives.front().number,
                                  pick(0, 3) > 0 ? DirectiveState("applied") : "rejected",
                                  s.attempt.number, s.newest_step, "random"};
        }
        return DirectiveChanged{s.directive && pick(0, 3) > 0 ? s.directive->number : pick(0, 20),
                                pick(0, 3) > 0 ? DirectiveState("applied") : "rejected",
                                s.attempt.number, s.newest_step, "random"};
      case 11:
        return Tick{};
      default:
        return finished(s);
    }
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  double loss() {
    switch (pick(0, calm_ ? 1000 : 60)) {
      case 0:
        return std::numeric_limits<double>::quiet_NaN();
      case 1:
        return std::numeric_limits<double>::infinity();
      case 2:
        return 50;
      case 3:
        return -std::numeric_limits<double>::infinity();
      case 4:
        return -1;
      default:
        return 2.0 + 0.001 * static_cast<double>(pick(-20, 20));
    }
  }

  static std::string plan() { return "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n"; }

  Event checkpoint(const State& s) {
    const std::string attempt = "uri" + std::to_string(s.attempt.number) + "/";
    if (calm_) {
      const int64_t step = s.newest_step / 10 * 10;
      return CheckpointCompleted{s.attempt.number, step, attempt + std::to_string(step),
                                 s.plan_version};
    }
    const int64_t step = pick(0, 5) == 0 ? pick(0, 200) : (s.newest_step / 10 + pick(0, 1)) * 10;
    return CheckpointCompleted{s.attempt.number - (pick(0, 20) == 0 ? 1 : 0), step,
                               attempt + std::to_string(step),
                               pick(0, 9) == 0 ? pick(1, 4) : s.plan_version};
  }

  Event override_at(double now) {
    OperatorOverride asked;
    const char* kinds[] = {"pause",    "resume",  "resume", "stop", "checkpoint_now",
                           "set_plan", "silence", "mode",   "pray"};
    asked.kind = test::any_word(kinds[pick(0, 8)]);
    asked.owner = "anna";
    asked.reason = "a reason";
    asked.expires_at = pick(0, 60) == 0 ? 0 : now + static_cast<double>(pick(1, 100));
    const char* modes[] = {"observe", "advise", "enforce", "sleep"};
    if (asked.kind == "mode") asked.mode = test::any_word(modes[pick(0, 3)]);
    if (asked.kind == "set_plan" && pick(0, 9) > 0) asked.plan = pick(0, 1) == 0 ? plan() : "";
    return asked;
  }

  int64_t replay(const State& s) {
    if (s.replays.empty() || pick(0, 9) == 0) return pick(0, s.next_replay + 3);
    return s.replays[static_cast<size_t>(pick(0, static_cast<int64_t>(s.replays.size()) - 1))].id;
  }

  std::optional<double> maybe_loss() {
    if (pick(0, 30) == 0) return std::nullopt;
    return loss();
  }

  Event finished(const State& s) {
    ReplayFinished result;
    result.replay = replay(s);
    result.window = pick(0, 100);
    result.arm = "bf16";
    result.fingerprint_equal = pick(0, 1) == 0;
    result.compared_steps = pick(0, 20);
    if (pick(0, 4) == 0) result.first_mismatch_step = pick(0, 300);
    const int64_t steps = pick(0, 30);
    for (int64_t i = 0; i < steps; ++i) {
      result.steps.push_back(s.newest_step - 20 + i);
      result.losses.push_back(loss());
    }
    result.start_loss_bf16 = maybe_loss();
    result.start_loss_plan = maybe_loss();
    result.run_end_loss_bf16 = maybe_loss();
    result.replay_end_loss_bf16 = maybe_loss();
    return result;
  }

  std::mt19937_64 random_;
  bool overrides_;
  bool calm_;
};

class RandomEvents : public ::testing::TestWithParam<int> {};

TEST_P(RandomEvents, NeverBreakAnInvariant) {
  Policy policy = scenario_policy();
  if (GetParam() % 4 == 1) policy.mode = Mode::kObserve;
  if (GetParam() % 4 == 2) policy.ladder.from = "here";
  if (GetParam() % 4 == 3) policy.attribution.parallel = 4;
  if (GetParam() % 8 == 3) policy.ladder.from = "evidence";
  policy.limits.actions_max = 1000;
  policy.returning.quiet_windows = 1;
  policy.returning.probe_passes = 1;
  policy.directives.timeout_seconds = 60;
  const bool overrides = GetParam() >= 24;
  const bool calm = GetParam() / 4 % 2 == 1;
  EventGenerator generator(static_cast<uint64_t>(GetParam()), overrides, calm);
  Invariants invariants;
  State state;
  size_t largest = 0;
  int directives = 0;
  int expired = 0;
  int windows = 0;
  for (int i = 0; i < 20000 && !testing::Test::HasFailure(); ++i) {
    Event event =
        i == 0   ? Event(RunRegisteredEvent{"run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n",
                                          site_names(2), 2, 10, 1000})
        : i == 1 ? Event(AttemptStarted{1, 0, "start", 1})
                 : generator.next(state, i);
    if (i == 19000) event = RunEnded{"stopped", state.newest_step};
    Outcome outcome = decide(std::move(state), event, policy, i);
    invariants.check(event, outcome, policy);
    for (const Effect& effect : outcome.effects)
      directives += std::holds_alternative<IssueDirective>(effect) ? 1 : 0;
    for (const Effect& effect : outcome.effects)
      expired += std::holds_alternative<EndDirective>(effect) ? 1 : 0;
    for (const Effect& effect : outcome.effects)
      windows += std::holds_alternative<OpenWindow>(effect) ? 1 : 0;
    state = std::move(outcome.state);
    if (i % 50 == 0) {
      const std::string text = state_to_json(state);
      largest = std::max(largest, text.size());
      ASSERT_EQ(state_to_json(state_from_json(text)), text);
      const std::string written = event_to_json(event);
      ASSERT_EQ(event_to_json(event_from_json(event_type(event), written)), written);
    }
  }
  EXPECT_LT(largest, 200'000u) << "bytes of state";
  EXPECT_EQ(directives > 0, overrides || policy.mode == Mode::kEnforce)
      << "the random runs reach actions";
  if (overrides) {
    EXPECT_GE(expired, 10) << "and directives that nobody answers";
  }
  // Without anybody who resumes it a wild run is soon held, since it is not finite.
  if (calm || overrides) {
    EXPECT_GE(windows, calm ? 100 : 1) << "and windows that are measured";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomEvents, ::testing::Range(0, 48));

TEST(RandomEventsTest, BeforeTheRunIsRegisteredNothingHappens) {
  EventGenerator generator(99, true, false);
  State state;
  for (int i = 0; i < 1000; ++i) {
    const Event event = generator.next(state, i);
    if (std::holds_alternative<RunRegisteredEvent>(event)) continue;
    Outcome outcome = decide(std::move(state), event, Policy(), i);
    EXPECT_TRUE(outcome.effects.empty());
    EXPECT_FALSE(outcome.reason.empty());
    state = std::move(outcome.state);
  }
}

}  // namespace
}  // namespace gnomon::decide
