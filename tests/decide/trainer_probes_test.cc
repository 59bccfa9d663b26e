// Probes by the trainer itself, where one verifier is alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/decide/probe_scenes.h"

namespace gnomon::decide {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Alone {
  bool trainer_confirms = false;
  bool trainer_can = true;
};

SimulatedRun alone(const Alone& scene, int64_t until, bool lies) {
  Truth truth = numerical_fault({kGuilty}, kBegins, until);
  truth.total_steps = 1600;
  truth.verifiers = {"v1:1"};
  truth.trainer_confirms = scene.trainer_confirms;
  SimulatedRun run(truth, with([](Policy& p) { p.returning.quiet_windows_max = 2; }));
  run.lie = [lies](ReplayFinished& answer) {
    if (lies && is_probe(answer) && !answer.on_trainer)
      answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
  run.filter = [&run, scene](const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    if (answer == nullptr || !answer->on_trainer || scene.trainer_can || !is_probe(*answer))
      return true;
    run.feed(
        ReplayFailed{answer->replay, answer->window, "plan", "no memory for the trainer's state"});
    return false;
  };
  run.start();
  run.train_until(1600);
  return run;
}

TEST(TrainerProbesTest, TheTrainerDoesTheLastProbeWhereOneVerifierIsAlone) {
  const SimulatedRun run = alone({.trainer_confirms = true}, kOver, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_EQ(probes_of_trainer(run), 1);
}

TEST(TrainerProbesTest, TheTrainerDeniesWhatALyingVerifierSaysOfProbes) {
  const SimulatedRun run = alone({.trainer_confirms = true}, kHolds, true);
  EXPECT_THAT(run.decisions("return"), IsEmpty());
  EXPECT_GE(probes_of_trainer(run), 1);
}

TEST(TrainerProbesTest, ATrainerThatCannotDoesNotKeepTheRunForEver) {
  const SimulatedRun run = alone({.trainer_confirms = true, .trainer_can = false}, kOver, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(TrainerProbesTest, WhereNobodyElseCanBeAskedOneVerifierIsBelieved) {
  const SimulatedRun run = alone({}, kOver, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_EQ(probes_of_trainer(run), 0);
}

// A lone verifier beside a trainer whose probe is not answered for as long as `silent` holds.
SimulatedRun awaiting_trainer(const bool& silent, double timeout_seconds) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 2600;
  truth.verifiers = {"v1:1"};
  truth.trainer_confirms = true;
  Policy policy = patient();
  policy.directives.timeout_seconds = timeout_seconds;
  SimulatedRun run(truth, policy);
  run.filter = [&silent](const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    return !(silent && answer != nullptr && answer->on_trainer && is_probe(*answer));
  };
  run.start();
  while (run.step < 1600 && probes_of_trainer(run) == 0) run.advance();
  return run;
}

TEST(TrainerProbesTest, AProbeThatTheTrainerDoesNotTakeInTimeIsDoneWithout) {
  const bool silent = true;
  SimulatedRun run = awaiting_trainer(silent, 60);
  run.train_until(1600);
  EXPECT_THAT(sentences(run, "return"), SizeIs(1));
}

TEST(TrainerProbesTest, ARunThatEndsDoesNotWaitForItsTrainersProbe) {
  bool silent = true;
  SimulatedRun run = awaiting_trainer(silent, 6000);
  run.drain();
  run.end("lost");
  silent = false;
  run.drain();
  EXPECT_THAT(run.state.windows, IsEmpty());
  AttemptStarted again;
  again.attempt = run.attempt;
  again.base_step = run.step;
  again.cause = std::string(kContinued);
  again.plan_version = run.state.plan_version;
  run.feed(again);
  run.train_until(2600);
  EXPECT_THAT(sentences(run, "return"), SizeIs(1));
}

TEST(TrainerProbesTest, ARunThatIsOnlyWatchedDoesNotStopItsTrainerForProbes) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 3000;
  truth.verifiers = {"v1:1"};
  truth.trainer_confirms = true;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  while (run.step < 1000 && !run.state.containment) run.advance();
  run.advance();
  run.ask("mode", 0, "observe");
  run.train_until(3000);
  EXPECT_EQ(probes_of_trainer(run), 0);
  EXPECT_LE(run.decisions("return").size(), 8u) << "each waits longer than the one before";
}

TEST(TrainerProbesTest, AnswersOfTheTrainerWithoutALossAreNotAskedForEver) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 3000;
  truth.verifiers = {"v1:1"};
  truth.trainer_confirms = true;
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (is_probe(answer) && answer.on_trainer) answer.run_end_loss_bf16.reset();
  };
  run.start();
  run.train_until(3000);
  EXPECT_EQ(probes_of_trainer(run), 1);
  EXPECT_THAT(sentences(run, "return"), SizeIs(1));
}

// The trainer's probe of a window that a spike or a broken instrument spoils says nothing; that
// does not make the verifier's word enough.
TEST(TrainerProbesTest, AProbeOfTheTrainersThatIsNotCountedIsAskedAgain) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kHolds);
  truth.total_steps = 2000;
  truth.verifiers = {"v1:1"};
  truth.trainer_confirms = true;
  truth.bump = [](int64_t step, const std::set<std::string>&) { return step == 281 ? 3.0 : 0.0; };
  SimulatedRun run(truth, with([](Policy& p) { p.ladder.rungs = {"bf16"}; }));
  run.lie = [](ReplayFinished& answer) {
    if (is_probe(answer) && !answer.on_trainer)
      answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
  run.start();
  run.train_until(2000);
  EXPECT_THAT(sentences(run, "return"), IsEmpty());
  EXPECT_GE(probes_of_trainer(run), 2);
}

}  // namespace
}  // namespace gnomon::decide
