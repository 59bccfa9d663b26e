// One verifier's word about a thing that BF16's losses do not show: what evaluating in FP8 costs,
// which tokens the run took, how far nudged replays part. It decides nothing alone.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/decide/scenarios.h"
#include "tests/decide/triage_support.h"

namespace gnomon::decide {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

// v1 is the one.
SimulatedRun played_with(Truth truth, std::function<void(ReplayFinished&)> alter,
                         int64_t from_step = 0) {
  truth.replays_per_step_percent = 100;
  SimulatedRun run(truth, scenario_policy());
  run.lie = [&](ReplayFinished& answer) {
    if (answer.verifier == "v1:1" && run.step >= from_step) alter(answer);
  };
  run.start();
  run.train_until(1000);
  run.drain();
  return run;
}

std::function<void(ReplayFinished&)> offset_times(double factor) {
  return [factor](ReplayFinished& answer) {
    if (answer.start_loss_plan) *answer.start_loss_plan *= factor;
  };
}

std::vector<std::string> verdict_names(const SimulatedRun& run) {
  std::vector<std::string> names;
  for (const RecordDecision& decision : run.decisions("verdict")) names.push_back(decision.verdict);
  return names;
}

// Nobody can say which of the two is wrong; both say what FP8 damages.
TEST(OneWord, AnOffsetThatOneOfTwoGetsWrongHidesNoFaultAndBlamesNobody) {
  for (const double factor : {0.96, 1.02}) {
    for (const bool faulty : {false, true}) {
      for (const bool equal : {false, true}) {
        Truth truth = faulty ? numerical_fault({kGuilty}, 401, 1001) : Truth();
        truth.equal_fingerprints = equal;
        const SimulatedRun run = played_with(truth, offset_times(factor));
        SCOPED_TRACE(fmt::format("{} {} {}", factor, faulty, equal));
        EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
        EXPECT_FALSE(run.state.watch.instrument.broken);
        EXPECT_THAT(verdict_names(run), Not(Contains("scale_drift")));
        EXPECT_EQ(std::ranges::count(verdict_names(run), "fp8_numerics") > 0, faulty);
        EXPECT_NEAR(run.damage, 0, 5) << "of 120%";
        if (!faulty) {
          EXPECT_THAT(run.directives(""), IsEmpty());
        }
      }
    }
  }
}

// The other two bear each other out: a drift is found.
TEST(OneWord, AnOffsetThatOneOfThreeGetsWrongHidesNoDrift) {
  for (const bool equal : {false, true}) {
    Truth drift;
    drift.drift = [](int64_t step) { return step >= 500 ? 2.0 : 0.0; };
    drift.verifiers = {"v1:1", "v2:2", "v3:3"};
    drift.equal_fingerprints = equal;
    const SimulatedRun run = played_with(drift, offset_times(1.02));
    SCOPED_TRACE(equal);
    const auto found = run.decisions("verdict");
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.front().verdict, "scale_drift");
    EXPECT_GE(found.front().step, 500);
    for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, "v1:1");
  }
}

// v1 alone repeats the damage by its losses: no other can say that it is the kernel.
TEST(OneWord, AnOffsetThatOneOfThreeGetsWrongIsNoKernelBug) {
  for (int64_t from = 401; from <= 461; from += 5) {
    Truth truth = numerical_fault({kGuilty}, from, 1001);
    truth.verifiers = {"v1:1", "v2:2", "v3:3"};
    truth.equal_fingerprints = false;
    const SimulatedRun run = played_with(truth, offset_times(0.99));
    EXPECT_THAT(verdict_names(run), Contains("fp8_numerics")) << from;
    EXPECT_THAT(verdict_names(run), Not(Contains("kernel_bug"))) << from;
  }
}

// Which tokens a run took its trainer cannot say, and the loss shows no damage.
TEST(OneWord, OtherTokensThatOneAloneSeesTakeNoRunBack) {
  for (const int64_t from : {100, 300, 500, 512}) {
    Truth truth;
    truth.verifiers = {"v1:1"};
    truth.trainer_replays = true;
    const auto other_tokens = [](ReplayFinished& answer) {
      if (answer.arm != "same" || answer.steps.empty()) return;
      answer.first_mismatch_step = answer.first_other_batch_step = answer.steps[0];
      answer.other_batches = {{answer.steps[0], "run", "data"}};
    };
    const SimulatedRun run = played_with(truth, other_tokens, from);
    EXPECT_THAT(run.decisions("alarm"), Not(IsEmpty())) << from;
    EXPECT_THAT(run.directives(""), IsEmpty()) << from;
  }
}

// A window of D = 1.1% over its limit of 1%, and pairs whose ends part by 1.1%, all of v1.
struct Pairs {
  TriageEvidence evidence;
  TriageRules rules;

  Pairs() {
    evidence.trigger = "gap";
    evidence.measured = gap_of(1.1);
    evidence.level_percent = 1.1;
    rules.one_window_percent = rules.ceiling_percent = 1;
    rules.noise_percent = 0.1;
    rules.other_verifiers = true;
    for (const ReplayRole kind : {ReplayRole("same"), ReplayRole("same_elsewhere")}) {
      TriageAnswer same = answer(kind, 0, 2.022);
      same.verifier = kind == "same" ? "v1" : "v2";
      same.reproduction = Reproduction{true, true, std::nullopt, false, "The same bits"};
      evidence.answers.push_back(same);
    }
    for (int64_t seed = 1; seed <= rules.pairs; ++seed) {
      evidence.answers.push_back(answer("fp8_nudged", seed, 2.022));
      evidence.answers.push_back(answer("bf16_nudged", seed, 2.0));
    }
  }
  static TriageAnswer answer(ReplayRole kind, int64_t seed, double end,
                             const std::string& verifier = "v1") {
    TriageAnswer result;
    result.kind = kind;
    result.seed = seed;
    result.end_loss = end;
    result.verifier = verifier;
    return result;
  }
  // v2 does all pairs again; those in FP8 end here.
  void add_seconds(double fp8_end) {
    for (int64_t seed = 1; seed <= rules.pairs; ++seed) {
      evidence.seconds.push_back(answer("fp8_nudged", seed, fp8_end, "v2"));
      evidence.seconds.push_back(answer("bf16_nudged", seed, 2.0, "v2"));
    }
  }
  TriageStep step() const { return triage(evidence, rules); }
};

TEST(OneWord, PairsOfOneVerifierAreDoneAgainElsewhere) {
  const TriageStep step = Pairs().step();
  ASSERT_EQ(step.tests.size(), 6);
  EXPECT_TRUE(std::ranges::all_of(step.tests, &TriageTest::second));
}

TEST(OneWord, PairsThatAnotherBearsOutExcludeChance) {
  Pairs pairs;
  pairs.add_seconds(2.022);
  const TriageStep step = pairs.step();
  ASSERT_EQ(step.tests.size(), 1);
  EXPECT_EQ(step.tests[0].kind, "fakequant") << "what is asked next";
}

TEST(OneWord, OfTwoThatAgreeWithinTheNoiseTheLowerOneCounts) {
  Pairs pairs;
  pairs.add_seconds(2.0185);
  ASSERT_TRUE(pairs.step().verdict.has_value());
  EXPECT_EQ(pairs.step().verdict->name, "chance");
}

TEST(OneWord, PairsThatNobodyElseCanDoSayNothingNearTheLimit) {
  for (const double noise : {0.01, 0.1}) {
    Pairs pairs;
    pairs.rules.noise_percent = noise;
    pairs.add_seconds(2.022);
    for (TriageAnswer& second : pairs.evidence.seconds) second.failed = true;
    const TriageStep step = pairs.step();
    EXPECT_EQ(step.verdict.has_value(), noise == 0.1);
    if (step.verdict) {
      EXPECT_EQ(step.verdict->name, "chance");
    }
  }
}

}  // namespace
}  // namespace gnomon::decide
