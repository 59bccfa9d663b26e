#include "controller/decide/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/errors.h"
#include "controller/decide/economics.h"
#include "tests/support/special_numbers.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;

void run(Account& account, StepKind kind, int steps, double seconds) {
  for (int i = 0; i < steps; ++i) ASSERT_TRUE(add_step(account, kind, seconds));
}

double seconds_of(const Statement& made, const std::string& key) {
  for (const AccountItem& item : made.items) {
    if (item.key == key) return item.seconds;
  }
  ADD_FAILURE() << "no item " << key;
  return 0;
}

// One of everything: FP8 steps of 1 s, BF16 steps of 1.4 s.
Account eventful() {
  Account account;
  run(account, StepKind::kFp8, 1000, 1.0);
  run(account, StepKind::kPinned, 100, 1.1);
  run(account, StepKind::kBf16, 200, 1.4);
  add_rollback(account, {50, 10, 0});
  add_verification(account, Where::kTrainer, 40);
  add_verification(account, Where::kSpare, 100, 0.25);
  add_spare_idle(account, 60, 0.25);
  add_hold(account, 30);
  add_switch(account, 12);
  set_loss_gap(account, 0.1);
  return account;
}

TEST(AccountTest, EveryItemIsWhatWasPaidForIt) {
  const Statement made = statement(eventful(), 1.3);
  EXPECT_EQ(made.useful_steps, 1240);
  EXPECT_NEAR(seconds_of(made, "training"), 1240, 1e-9);
  EXPECT_NEAR(seconds_of(made, "bf16_steps"), 200 * 0.4, 1e-9);
  EXPECT_NEAR(seconds_of(made, "pinned_steps"), 90 * 0.1, 1e-9);
  EXPECT_NEAR(seconds_of(made, "rolled_back"), 50 * 1.0 + 10 * 1.1, 1e-9);
  EXPECT_DOUBLE_EQ(seconds_of(made, "verification"), 40);
  EXPECT_DOUBLE_EQ(seconds_of(made, "spare"), 25);
  EXPECT_DOUBLE_EQ(seconds_of(made, "spare_idle"), 15);
  EXPECT_DOUBLE_EQ(seconds_of(made, "holds"), 30);
  EXPECT_DOUBLE_EQ(seconds_of(made, "switches"), 12);
  const double paid = 1000 + 110 + 280 + 40 + 25 + 15 + 30 + 12;
  EXPECT_NEAR(seconds_of(made, "loss_gap"), paid * (std::pow(1.001, 20) - 1), 1e-9);
  EXPECT_NEAR(made.paid_seconds, paid * std::pow(1.001, 20), 1e-9);
  EXPECT_NEAR(made.bf16_seconds, 1240 * 1.4, 1e-9);
  EXPECT_NEAR(made.net, 1240 * 1.4 / (paid * std::pow(1.001, 20)), 1e-12);
}

TEST(AccountTest, TheItemsAddUpWhateverHappens) {
  std::mt19937_64 random(11);
  std::lognormal_distribution<double> seconds(0, 0.5);
  std::uniform_int_distribution<int> what(0, 40), count(0, 12);
  for (int round = 0; round < 50; ++round) {
    Account account;
    for (int fact = 0; fact < 2000; ++fact) {
      const double time = seconds(random);
      switch (what(random)) {
        case 0:
          add_rollback(account, {count(random), count(random), count(random)});
          break;
        case 1:
          add_verification(account, Where::kTrainer, time);
          break;
        case 2:
          add_verification(account, Where::kSpare, time, 0.3);
          break;
        case 3:
          add_spare_idle(account, time, 0.3);
          break;
        case 4:
          add_hold(account, time);
          break;
        case 5:
          add_switch(account, time);
          break;
        case 6:
          set_loss_gap(account, time - 1);
          break;
        case 7:
          add_crash(account, {count(random), 0, count(random)});
          break;
        case 8:
          add_step(account, StepKind::kBf16, 1.3 * time);
          break;
        case 9:
          add_step(account, StepKind::kPinned, 1.1 * time);
          break;
        default:
          add_step(account, StepKind::kFp8, time);
      }
      if (fact % 100 != 0) continue;
      const Statement made = statement(account, 1.3);
      double sum = 0, shares = 0;
      for (const AccountItem& item : made.items) {
        sum += item.seconds;
        shares += item.share;
      }
      ASSERT_NEAR(sum, made.paid_seconds, 1e-9 * made.paid_seconds) << "after " << fact;
      ASSERT_NEAR(shares, made.paid_seconds > 0 ? 1 : 0, 1e-9);
    }
  }
}

TEST(AccountTest, APerfectRunEarnsFp8sWholeSpeedup) {
  Account account;
  run(account, StepKind::kFp8, 100, 2.0);
  EXPECT_DOUBLE_EQ(statement(account, 1.35).net, 1.35);
}

TEST(AccountTest, ARunInBf16AllTheTimeEarnsNothing) {
  Account account;
  run(account, StepKind::kBf16, 100, 2.0);
  EXPECT_NEAR(statement(account, 1.35).net, 1, 1e-12);
}

TEST(AccountTest, ItAgreesWithTheModelWhoseRunItBooks) {
  RunModel model;
  model.windows_between_false_alarms = kInfinity;
  // 20 windows without a fault: N = 500, V = sK + c.
  Account account;
  run(account, StepKind::kFp8, 10'000, 1.0);
  for (int window = 0; window < 20; ++window) {
    add_verification(account, Where::kTrainer,
                     model.speedup * model.window_steps + model.switch_steps);
  }
  EXPECT_NEAR(statement(account, model.speedup).net, net_speedup(model, 500, 0), 1e-12);
}

TEST(AccountTest, BeforeAnythingHappenedThereIsNoNetSpeedup) {
  const Statement made = statement({}, 1.35);
  EXPECT_EQ(made.net, 0);
  EXPECT_EQ(made.paid_seconds, 0);
  EXPECT_THAT(made.sentence, HasSubstr("No step"));
}

TEST(AccountTest, EachCostLowersTheNetSpeedup) {
  const double net = statement(eventful(), 1.3).net;
  Account account = eventful();
  const auto lowered = [&](bool accepted) {
    EXPECT_TRUE(accepted);
    EXPECT_LT(statement(account, 1.3).net, net);
    account = eventful();
  };
  lowered(add_rollback(account, {1, 0, 0}));
  lowered(add_rollback(account, {0, 1, 0}));
  lowered(add_rollback(account, {0, 0, 1}));
  lowered(add_verification(account, Where::kTrainer, 1));
  lowered(add_verification(account, Where::kSpare, 1, 0.1));
  lowered(add_spare_idle(account, 1, 0.1));
  lowered(add_hold(account, 1));
  lowered(add_switch(account, 1));
  lowered(set_loss_gap(account, 0.2));
  lowered(add_step(account, StepKind::kBf16, 1.4));
}

TEST(AccountTest, ALossGapBelowZeroEarnsNothing) {
  Account account = eventful();
  set_loss_gap(account, 0);
  const double net = statement(account, 1.3).net;
  ASSERT_TRUE(set_loss_gap(account, -0.5));
  EXPECT_EQ(statement(account, 1.3).net, net);
}

TEST(AccountTest, ACrashIsNeitherPaidNorEarned) {
  Account account;
  run(account, StepKind::kFp8, 100, 2.0);
  add_verification(account, Where::kTrainer, 20);
  Account crashed = account;
  run(crashed, StepKind::kFp8, 40, 2.0);
  ASSERT_TRUE(add_crash(crashed, {40, 0, 0}));
  EXPECT_NEAR(statement(crashed, 1.3).net, statement(account, 1.3).net, 1e-12);
  EXPECT_EQ(statement(crashed, 1.3).useful_steps, 100);
}

TEST(AccountTest, TheSpeedupComesFromTheBestSourceThereIs) {
  Account account;
  run(account, StepKind::kFp8, 20, 1.0);
  EXPECT_EQ(measured_speedup(account, 1.3).source, "prior");
  EXPECT_EQ(measured_speedup(account, 1.3).value, 1.3);
  for (int i = 0; i < 8; ++i) {
    add_replayed_steps(account, Where::kSpare, StepKind::kBf16, 1, 2.5);
    add_replayed_steps(account, Where::kSpare, StepKind::kFp8, 1, 2.0);
  }
  EXPECT_EQ(measured_speedup(account, 1.3).source, "spare_replays");
  EXPECT_DOUBLE_EQ(measured_speedup(account, 1.3).value, 1.25);
  for (int i = 0; i < 8; ++i)
    add_replayed_steps(account, Where::kTrainer, StepKind::kBf16, 1, 1.35);
  EXPECT_EQ(measured_speedup(account, 1.3).source, "inline_replays");
  EXPECT_DOUBLE_EQ(measured_speedup(account, 1.3).value, 1.35);
  run(account, StepKind::kBf16, 7, 1.4);
  EXPECT_EQ(measured_speedup(account, 1.3).source, "inline_replays") << "7 steps are too few";
  run(account, StepKind::kBf16, 1, 1.4);
  EXPECT_EQ(measured_speedup(account, 1.3).source, "steps");
  EXPECT_DOUBLE_EQ(measured_speedup(account, 1.3).value, 1.4);
}

TEST(AccountTest, AReplayIsOneTimeOfTheMedianHoweverManyStepsItHas) {
  Account account;
  run(account, StepKind::kFp8, 20, 1.0);
  for (double seconds : {1.3, 1.4, 9.0})
    EXPECT_TRUE(add_replayed_steps(account, Where::kTrainer, StepKind::kBf16, 25, seconds));
  EXPECT_EQ(account.trainer_replay_bf16.steps, 75);
  EXPECT_EQ(account.trainer_replay_bf16.recent.size(), 3u);
  EXPECT_DOUBLE_EQ(account.trainer_replay_bf16.seconds, 25 * (1.3 + 1.4 + 9.0));
  EXPECT_DOUBLE_EQ(measured_speedup(account, 2).value, 1.4);
  EXPECT_FALSE(add_replayed_steps(account, Where::kTrainer, StepKind::kBf16, 0, 1.3));
}

TEST(AccountTest, AStallDoesNotMoveTheSpeedupButIsPaid) {
  Account account;
  run(account, StepKind::kBf16, 20, 1.4);
  run(account, StepKind::kFp8, 20, 1.0);
  add_step(account, StepKind::kFp8, 900);
  EXPECT_DOUBLE_EQ(measured_speedup(account, 2).value, 1.4);
  EXPECT_DOUBLE_EQ(statement(account, 2).paid_seconds, 28 + 20 + 900);
}

TEST(AccountTest, ItsSizeDoesNotGrow) {
  Account account;
  run(account, StepKind::kFp8, 1000, 1.0);
  EXPECT_EQ(account.fp8.recent.size(), kStepTimesKept);
}

TEST(AccountTest, NonsenseChangesNothing) {
  Account account = eventful();
  const Statement before = statement(account, 1.3);
  for (double wrong : {static_cast<double>(NAN), kInfinity, -kInfinity, -1.0}) {
    for (StepKind kind : kStepKinds) EXPECT_FALSE(add_step(account, kind, wrong));
    EXPECT_FALSE(add_replayed_steps(account, Where::kSpare, StepKind::kBf16, 1, wrong));
    EXPECT_FALSE(add_verification(account, Where::kTrainer, wrong));
    EXPECT_FALSE(add_verification(account, Where::kSpare, 1, wrong));
    EXPECT_FALSE(add_spare_idle(account, 1, wrong));
    EXPECT_FALSE(add_hold(account, wrong));
    EXPECT_FALSE(add_switch(account, wrong));
  }
  EXPECT_FALSE(set_loss_gap(account, NAN));
  EXPECT_FALSE(set_loss_gap(account, kInfinity));
  EXPECT_FALSE(add_step(account, StepKind::kFp8, 0));
  EXPECT_FALSE(add_replayed_steps(account, Where::kTrainer, StepKind::kFp8, 1, 1));
  EXPECT_FALSE(add_replayed_steps(account, Where::kSpare, StepKind::kPinned, 1, 1));
  EXPECT_FALSE(add_rollback(account, {951, 0, 0})) << "50 of 1000 are lost already";
  EXPECT_FALSE(add_rollback(account, {0, 0, -1}));
  EXPECT_FALSE(add_crash(account, {0, 91, 0}));
  const Statement after = statement(account, 1.3);
  EXPECT_EQ(before.paid_seconds, after.paid_seconds);
  EXPECT_EQ(before.net, after.net);
  EXPECT_EQ(before.sentence, after.sentence);
  EXPECT_EQ(account.holds, 1);
  EXPECT_EQ(account.switches, 1);
  EXPECT_EQ(account.verifications, 2);
  EXPECT_EQ(account.rollbacks, 1);
  EXPECT_THROW(statement(account, NAN), ConfigError);
  EXPECT_THROW(statement(account, 0), ConfigError);
  EXPECT_THROW(statement(account, 1.3, 0), ConfigError);
}

TEST(AccountTest, TheSentenceNamesTheCostsInTheirOrder) {
  const std::string sentence = statement(eventful(), 1.3).sentence;
  EXPECT_THAT(sentence, HasSubstr("Net speed-up 1.125"));
  EXPECT_THAT(sentence, HasSubstr("1.40 from FP8's faster steps, measured"));
  EXPECT_LT(sentence.find("steps in BF16"), sentence.find("rolled back"));
}

}  // namespace
}  // namespace gnomon::decide
