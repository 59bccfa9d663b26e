#include "controller/decide/net_speedup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

#include "controller/decide/decide.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Truth fast(Truth truth) {
  truth.bf16_step_seconds = 1.35;
  truth.replay_overhead_seconds = 4;
  return truth;
}

double item(const NetSpeedupReport& report, const std::string& key) {
  for (const AccountItem& each : report.statement.items) {
    if (each.key == key) return each.seconds;
  }
  ADD_FAILURE() << "no item " << key;
  return 0;
}

// Seconds of the replays that were answered, from the events.
double replay_seconds(const SimulatedRun& run) {
  double seconds = 0;
  for (const Event& event : run.events) {
    if (const auto* done = std::get_if<ReplayFinished>(&event)) seconds += done->seconds;
  }
  return seconds;
}

TEST(NetSpeedupTest, ARunWithAFaultIsPaidInFullAndItsSpeedUpIsMeasured) {
  // One rescue at a time: none becomes pointless, and is not waited for, while it is under way.
  SimulatedRun run(fast(numerical_fault({kGuilty}, 201, 460)),
                   with([](Policy& p) { p.attribution.parallel = 1; }));
  run.start();
  run.train_until(1000);
  run.end();
  run.drain();
  ASSERT_GT(run.steps_lost, 0);
  const NetSpeedupReport made = net_speedup_report(run.state, run.policy);
  EXPECT_EQ(made.statement.speedup.source, "inline_replays");
  EXPECT_DOUBLE_EQ(made.statement.speedup.value, 1.35);
  EXPECT_EQ(made.statement.useful_steps, 1000);
  EXPECT_EQ(steps_lost(made.account), run.steps_lost);
  EXPECT_DOUBLE_EQ(item(made, "rolled_back"), static_cast<double>(run.steps_lost));
  EXPECT_DOUBLE_EQ(item(made, "verification"), replay_seconds(run));
  EXPECT_GE(made.account.pinned.steps, 20);
  EXPECT_EQ(made.hazard.faults, 1);
  const double paid = (1000.0 + static_cast<double>(run.steps_lost) + replay_seconds(run) +
                       made.account.switch_seconds) *
                      compute_factor(made.account.loss_gap_percent);
  EXPECT_NEAR(made.statement.net, 1350.0 / paid, 1e-12);
  EXPECT_LT(made.hazard_low, made.hazard_mean);
  EXPECT_GT(made.hazard_high, made.hazard_mean);
}

TEST(NetSpeedupTest, ASwitchIsTheTimeWithoutStepsBetweenTheLastStepAndTheFirst) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.start();
  run.train_until(95);
  const double last = run.times.back();
  run.feed(AttemptStarted{2, 60, "rollback", 1, "trainer-host"});
  run.wait(40);
  run.feed(StepReported{2, 61, 1, 3.0, 1.0, 2.0});
  const Account& account = run.state.money.account;
  EXPECT_EQ(account.switches, 1);
  EXPECT_DOUBLE_EQ(account.switch_seconds, run.times.back() - last - 2.0);
  EXPECT_EQ(account.fp8_lost, 35);
  run.feed(StepReported{2, 62, 1, 3.0, 1.0, 2.0});
  EXPECT_EQ(account.switches, 1);
}

TEST(NetSpeedupTest, AChangeOfPlanWithoutARollbackIsASwitchToo) {
  SimulatedRun run(fast(numerical_fault({kGuilty}, 201, 1000)),
                   with([](Policy& p) { p.ladder.from = "here"; }));
  run.start();
  run.train_until(600);
  EXPECT_EQ(run.state.money.account.rollbacks, 0);
  EXPECT_EQ(run.state.money.account.switches,
            static_cast<int64_t>(run.directives("set_plan").size()));
}

TEST(NetSpeedupTest, ACrashIsNeitherPaidNorASwitch) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.start();
  run.train_until(95);
  run.restart_from(60);
  run.wait(1000);
  run.train_until(100);
  const NetSpeedupReport made = net_speedup_report(run.state, run.policy);
  EXPECT_EQ(made.account.fp8.steps, 100);
  EXPECT_EQ(steps_lost(made.account), 0);
  EXPECT_EQ(made.account.switches, 0);
  EXPECT_EQ(item(made, "switches"), 0);
}

TEST(NetSpeedupTest, StepsWhoseTimeIsNotKnownDoNotHideARollback) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.filter = [](const Event&) { return true; };
  run.start();
  run.feed(StepReported{1, 1, 1, 3.0, 1.0, 1.0});
  run.feed(StepReported{1, 2, 1, 3.0, 1.0, 0.0});
  run.feed(AttemptStarted{2, 0, "rollback", 1, "trainer-host"});
  EXPECT_EQ(run.state.money.account.rollbacks, 1);
  EXPECT_EQ(run.state.money.account.fp8_lost, 1);
}

TEST(NetSpeedupTest, SpareDevicesArePaidWhileTheyWait) {
  Policy policy = scenario_policy();
  policy.economics.spare_fraction = 0.25;
  policy.window.every = 80;
  SimulatedRun run(fast(Truth()), policy);
  run.start();
  run.train_until(400);
  run.drain();
  const NetSpeedupReport made = net_speedup_report(run.state, policy);
  EXPECT_EQ(item(made, "verification"), 0);
  EXPECT_DOUBLE_EQ(item(made, "spare"), 0.25 * replay_seconds(run));
  EXPECT_DOUBLE_EQ(item(made, "spare") + item(made, "spare_idle"), 0.25 * 400);
  EXPECT_NEAR(made.verification_share, 100 / made.statement.paid_seconds, 1e-12);
}

TEST(NetSpeedupTest, AGapIsPaidForOnceItStandsOutOfTheNoiseAndNotInBf16) {
  SimulatedRun run(fast(numerical_fault({kGuilty}, 1, 1000, 0.004)), scenario_policy());
  run.start();
  run.train_until(100);
  EXPECT_EQ(loss_gap(run.state).paid_percent(), 0) << "five windows are too few";
  run.train_until(300);
  run.drain();
  EXPECT_NEAR(loss_gap(run.state).paid_percent(), 20 * 0.004, 0.04);
  const NetSpeedupReport made = net_speedup_report(run.state, run.policy);
  EXPECT_GT(item(made, "loss_gap"), 0);
  State in_bf16 = run.state;
  in_bf16.plans.push_back({9, "", true});
  in_bf16.plan_version = 9;
  EXPECT_EQ(loss_gap(in_bf16).paid_percent(), 0);
}

TEST(NetSpeedupTest, AGapWithinTwiceItsErrorIsNoise) {
  State state;
  state.registered = true;
  state.plans.push_back({1, "", false});
  state.plan_version = 1;
  for (double d : {0.06, -0.05, 0.04, -0.02, 0.05, -0.03, 0.05, -0.04}) {
    GapSample sample;
    sample.d_percent = d;
    state.watch.gap.newest.push_back(sample);
  }
  EXPECT_EQ(loss_gap(state).paid_percent(), 0);
  EXPECT_NEAR(loss_gap(state).percent, 0.0075, 1e-12) << "it is known all the same";
  EXPECT_EQ(loss_gap(state).source, "windows");
  EXPECT_GT(loss_gap(state).error_percent, 0.0075 / 2);
  for (GapSample& sample : state.watch.gap.newest) sample.d_percent += 0.05;
  EXPECT_NEAR(loss_gap(state).paid_percent(), 0.0575, 1e-12);
  for (GapSample sample : state.watch.gap.newest) {
    sample.d_percent = 0.3;
    state.watch.long_gap.newest.push_back(sample);
  }
  EXPECT_NEAR(loss_gap(state).paid_percent(), 0.3, 1e-12) << "long forks tell more";
  EXPECT_EQ(loss_gap(state).source, "long_forks");
  EXPECT_NEAR(loss_gap(state).error_percent, 0, 1e-12);
}

TEST(NetSpeedupTest, PointsAlongTheRunAreBoundedAndThoseBehindARollbackGo) {
  Truth truth = fast(Truth());
  truth.total_steps = 10'000;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(5000);
  const std::vector<CostPoint>& points = run.state.money.points;
  ASSERT_GT(points.size(), 40u);
  EXPECT_LT(points.size(), 96u);
  for (size_t i = 1; i < points.size(); ++i) EXPECT_GT(points[i].step, points[i - 1].step);
  EXPECT_LE(points.front().step, 100);
  EXPECT_GE(points.back().step, 4900);
  EXPECT_EQ(net_speedup_report(run.state, run.policy).points.back().step, 5000);
  run.feed(AttemptStarted{2, 2500, "rollback", 1, "trainer-host"});
  EXPECT_LE(run.state.money.points.back().step, 2500);
  EXPECT_GT(run.state.money.points.back().step, 2300);
}

TEST(NetSpeedupTest, TheBestCadenceStandsBesideTheOneInForce) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.start();
  run.train_until(400);
  run.drain();
  const CadenceReport cadence = net_speedup_report(run.state, run.policy).cadence;
  EXPECT_EQ(cadence.kind, "fixed");
  EXPECT_EQ(cadence.every, 20);
  ASSERT_TRUE(cadence.best.has_value());
  EXPECT_GT(*cadence.best, 20);
  EXPECT_EQ(*cadence.best % 10, 0) << "a multiple of the checkpoint interval";
  EXPECT_GT(cadence.best_net.value(), cadence.net.value());

  Policy slow = run.policy;
  slow.economics.speedup = 0.9;
  const CadenceReport none = net_speedup_report(State{}, slow).cadence;
  EXPECT_FALSE(none.best.has_value());
  EXPECT_THAT(none.reason, HasSubstr("0.90 times"));
}

TEST(NetSpeedupTest, ASlowerFp8IsNotCalledFaster) {
  Truth truth = fast(Truth());
  truth.bf16_step_seconds = 0.5;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(100);
  run.drain();
  const NetSpeedupReport made = net_speedup_report(run.state, run.policy);
  EXPECT_LT(made.statement.net, 0.5);
  EXPECT_THAT(made.statement.sentence, HasSubstr("FP8's steps have 0.50 times BF16's speed"));
}

TEST(NetSpeedupTest, ItPromisesHowSoonAFaultIsCaughtByTheCadenceAndNoiseOfTheRun) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.start();
  run.train_until(400);
  run.drain();
  const NetSpeedupReport made = net_speedup_report(run.state, run.policy);
  // The run's own noise counts, not the policy's prior.
  const auto& detector = run.policy.detector;
  const double scale = (made.promise.gap_percent - detector.tolerance_percent) / 2;
  EXPECT_GT(scale, 0);
  EXPECT_NE(scale, detector.prior_scale_percent);
  EXPECT_EQ(made.rollback_steps, window_lengths(run.state, run.policy).every * 3 / 2);
  run.policy.window.every *= 2;
  const NetSpeedupReport sparse = net_speedup_report(run.state, run.policy);
  EXPECT_GT(*sparse.promise.within_steps, *made.promise.within_steps * 3 / 2);
  EXPECT_THAT(promise_in_words(sparse.promise),
              HasSubstr(std::to_string(*sparse.promise.within_steps) + " steps, 19 times of 20"));
}

// Any detector that a policy may have: a promise that never ends would stop the daemon's readers.
TEST(PromiseTest, NothingIsPromisedWhereHealthyWindowsAlarmOrTheFaultDoesNot) {
  const WindowLengths lengths{.steps = 50, .every = 3000};
  Policy policy;
  policy.detector.kind = "fixed";
  for (const double percent : {0.1, 0.25, 5.0}) {  // each window, half of them, none
    policy.detector.fixed_percent = percent;
    const Promise made = promise(policy, lengths, 0.05, 2);
    EXPECT_FALSE(made.within_steps) << percent;
    EXPECT_THAT(promise_in_words(made), HasSubstr("nothing can be promised"));
  }
  policy.detector.fixed_percent = 0.5;
  EXPECT_FALSE(promise(policy, lengths, 0.05, 2).within_steps) << "0.35% is far below";
  // What is simulated is what is promised: 0.65%.
  EXPECT_TRUE(promise(policy, lengths, 0.2, 2).within_steps);
  policy.detector.kind = "eprocess";
  policy.detector.jump_deviations = 0.01;
  promise(policy, lengths, 0.05, 2);
}

TEST(PromiseTest, AFaultThatTheRunHasAcceptedIsNotPromised) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.start();
  run.train_until(200);
  run.drain();
  const double before = net_speedup_report(run.state, run.policy).promise.gap_percent;
  run.state.watch.gap.scale.accepted_percent = run.policy.detector.tolerance_percent + 0.3;
  EXPECT_NEAR(net_speedup_report(run.state, run.policy).promise.gap_percent, before + 0.3, 1e-9);
}

TEST(NetSpeedupTest, AsJsonItHasPlainKeysAndNothingIsMadeUpBeforeTheFirstStep) {
  SimulatedRun run(fast(Truth()), scenario_policy());
  run.start();
  boost::json::value none =
      boost::json::parse(net_speedup_to_json(net_speedup_report(run.state, run.policy)));
  EXPECT_TRUE(none.at("net_speedup").is_null());
  EXPECT_TRUE(none.at("points").as_array().empty());
  run.train_until(200);
  run.drain();
  boost::json::value json =
      boost::json::parse(net_speedup_to_json(net_speedup_report(run.state, run.policy)));
  std::vector<std::string> keys;
  for (const auto& member : json.as_object()) keys.emplace_back(member.key());
  EXPECT_THAT(keys, UnorderedElementsAre(
                        "net_speedup", "promise", "sentence", "speedup", "speedup_source",
                        "measured", "useful_steps", "bf16_seconds", "paid_seconds", "steps",
                        "steps_lost", "rollbacks", "replays", "verification_seconds",
                        "spare_verification_seconds", "spare_idle_seconds", "verification_share",
                        "holds", "hold_seconds", "switches", "switch_seconds", "loss_gap",
                        "loss_gap_percent", "items", "hazard", "cadence", "points"));
  EXPECT_EQ(json.at("steps").at("fp8").at("kept").as_int64(), 200);
  EXPECT_EQ(json.at("hazard").at("fp8_steps").as_int64(), 200);
  EXPECT_EQ(json.at("cadence").at("every").as_int64(), 20);
  EXPECT_GT(json.at("net_speedup").as_double(), 0);
  EXPECT_LT(json.at("net_speedup").as_double(), 1.35);
}

}  // namespace
}  // namespace gnomon::decide
