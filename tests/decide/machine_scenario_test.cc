// Scenarios of machines, data and kernels: what is wrong is not the rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// The run's FP8 kernels are wrong; those of one verifier's device are not.
Truth fault_that_v2_lacks(const std::vector<std::string>& sites, int64_t from, int64_t to) {
  Truth truth = numerical_fault(sites, from, to);
  truth.in_kernel = true;
  truth.sound_verifier = "v2:2";
  return truth;
}

std::vector<std::string> verdicts_of(const SimulatedRun& run) {
  std::vector<std::string> names;
  for (const RecordDecision& each : run.decisions("verdict"))
    names.emplace_back(each.verdict.text());
  return names;
}

TEST(MachineScenarioTest, ABitFlipIsATransientFaultAndIsRolledBackUnderTheSamePlan) {
  const SimulatedRun run = run_scenario("BitFlip");
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "transient_fault");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("step 333"));
  ASSERT_THAT(run.directives(""), SizeIs(1));
  const IssueDirective directive = run.directives("")[0];
  EXPECT_EQ(directive.kind, "rollback");
  EXPECT_EQ(directive.plan_version, 1);
  EXPECT_LT(directive.to_step, 333);
  EXPECT_NEAR(run.damage, 0, 1e-9);
  EXPECT_THAT(run.decisions("attribution"), IsEmpty());
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
}

TEST(MachineScenarioTest, ABitFlipSeenFromAnotherMachineIsToldByLosses) {
  const SimulatedRun run = run_scenario("BitFlipOtherMachine");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "transient_fault");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("the fingerprints differ"));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(MachineScenarioTest, AKernelBugIsToldFromNumerics) {
  const SimulatedRun run = run_scenario("KernelBug");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "kernel_bug");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("multiplied in BF16"));
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  EXPECT_EQ(run.decisions("action")[0].verdict, "kernel_bug");
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(MachineScenarioTest, AVerifierThatComputesWronglyIsQuarantinedAndTheRunIsLeftAlone) {
  // v2's `same` differs; v1 reproduces the run's bits.
  Truth truth = numerical_fault({kGuilty}, 201, 460);
  truth.bad_verifier = "v2:2";
  SimulatedRun bad(truth, scenario_policy());
  bad.start();
  bad.train_until(460);
  bad.drain();
  const auto verdicts = bad.decisions("verdict");
  EXPECT_THAT(bad.state.trust.quarantined, ElementsAre("v2:2"));
  ASSERT_FALSE(verdicts.empty());
  EXPECT_EQ(verdicts.back().verdict, "fp8_numerics") << "the fault is found all the same";
  EXPECT_TRUE(std::none_of(verdicts.begin(), verdicts.end(), [](const auto& verdict) {
    return verdict.verdict == "transient_fault" || verdict.verdict == "persistent_fault";
  }));
}

TEST(MachineScenarioTest, AVerifierThatIsWrongInFp8AloneHasNoInnocentSiteBlamed) {
  for (int64_t from = 21; from <= 181; from += 20) {
    Truth truth = numerical_fault({kGuilty}, from, 460);
    truth.bad_verifier = "v2:2";
    SimulatedRun run(truth, scenario_policy());
    run.start();
    run.train_until_phase("contained", 460);
    run.drain();
    ASSERT_FALSE(run.decisions("attribution").empty()) << from;
    EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty)) << from;
  }
}

// Chance is asked of a verifier that repeats the damage: by its bits, or where devices differ by
// its losses, which one window does not show at once.
TEST(MachineScenarioTest, AFaultThatAnotherVerifiersKernelsDoNotHaveIsNoChance) {
  for (const bool equal_devices : {true, false}) {
    for (const bool trainer : {false, true}) {
      for (int64_t from = 21; from <= 181; from += 20) {
        Truth truth = fault_that_v2_lacks({kGuilty}, from, 460);
        truth.trainer_replays = trainer;
        truth.equal_fingerprints = equal_devices;
        SimulatedRun run(truth, scenario_policy());
        run.start();
        run.train_until(460);
        run.drain();
        const std::vector<std::string> verdicts = verdicts_of(run);
        EXPECT_LE(std::ranges::count(verdicts, "chance"), equal_devices ? 0 : 1) << from;
        EXPECT_THAT(verdicts, Contains("kernel_bug")) << from;
      }
    }
  }
}

// Its name had the run's bits before; then it starts again on another device.
TEST(MachineScenarioTest, AVerifierThatMovedToAnotherDeviceHasNoInnocentSiteBlamed) {
  const std::vector<std::string> guilty = {"model.layers.0.self_attn.q_proj", kGuilty};
  for (int64_t from = 401; from <= 561; from += 20) {
    Truth truth = fault_that_v2_lacks(guilty, from, 1000);
    truth.sound_from = from - 40;
    SimulatedRun run(truth, scenario_policy());
    run.lie = [&](ReplayFinished& answer) {
      if (answer.verifier == "v2:2" && run.step >= truth.sound_from)
        answer.fingerprint_equal = false;
    };
    run.start();
    run.train_until(from + 200);
    run.drain();
    ASSERT_FALSE(run.decisions("attribution").empty()) << from;
    EXPECT_EQ(run.decisions("attribution")[0].sites, guilty) << from;
  }
}

// The only verifier is of another kind of device, whose kernels are right: the trainer's own tell.
TEST(MachineScenarioTest, AFaultThatNoVerifiersDeviceHasIsFoundByTheTrainers) {
  for (const bool trainer : {true, false}) {
    for (const int64_t from : {21, 201, 405}) {
      Truth truth = fault_that_v2_lacks({kGuilty}, from, 1000);
      truth.verifiers = {"v2:2"};
      truth.equal_fingerprints = false;
      truth.trainer_replays = trainer;
      SimulatedRun run(truth, scenario_policy());
      run.start();
      run.train_until(1000);
      run.drain();
      ASSERT_FALSE(run.decisions("verdict").empty()) << from;
      if (trainer) {
        EXPECT_EQ(run.decisions("verdict")[0].verdict, "kernel_bug") << from;
        ASSERT_FALSE(run.decisions("attribution").empty()) << from;
        EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty)) << from;
        EXPECT_NEAR(run.damage, 0, 1e-9) << from;
      } else {
        for (const auto& verdict : run.decisions("verdict"))
          EXPECT_EQ(verdict.verdict, "transient_fault") << from;
        EXPECT_EQ(phase_name(run.state), "holding") << from;
      }
    }
  }
}

// v2's device rounds rightly: it must not say what the run's rounding costs, in any replay.
TEST(MachineScenarioTest, RoundingThatAnotherDeviceLacksIsNotCalledAKernelBug) {
  for (const bool alone : {false, true}) {
    for (int64_t from = 21; from <= 181; from += 20) {
      Truth truth = fault_that_v2_lacks({kGuilty}, from, 460);
      truth.in_kernel = false;
      truth.trainer_replays = alone;
      truth.equal_fingerprints = !alone;
      truth.capabilities.compiled = true;
      if (alone) truth.verifiers = {"v2:2"};
      SimulatedRun run(truth, scenario_policy());
      run.start();
      run.train_until(460);
      run.drain();
      const std::vector<std::string> verdicts = verdicts_of(run);
      EXPECT_THAT(verdicts, Contains("fp8_numerics")) << from;
      EXPECT_THAT(verdicts, Not(Contains("kernel_bug"))) << from;
      ASSERT_FALSE(run.decisions("attribution").empty()) << from;
      EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty)) << from;
    }
  }
}

TEST(MachineScenarioTest, AStuckBitIsAPersistentFaultOfTheTrainersHost) {
  const SimulatedRun run = run_scenario("StuckBit");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "persistent_fault");
  EXPECT_EQ(run.decisions("action")[0].action, "hold");
  EXPECT_THAT(run.decisions("action")[0].sentence, HasSubstr("another host"));
  EXPECT_TRUE(run.paused);
}

TEST(MachineScenarioTest, ABitThatFlipsAgainAndAgainIsAPersistentFault) {
  Truth truth;
  truth.bit_flips = {333, 433};
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(1000);
  run.drain();
  const auto verdicts = run.decisions("verdict");
  ASSERT_GE(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].verdict, "transient_fault");
  EXPECT_EQ(verdicts[1].verdict, "persistent_fault");
  EXPECT_THAT(verdicts[1].sentence, HasSubstr("second time"));
}

TEST(MachineScenarioTest, OnOtherMachinesChanceIsNotTakenForAFault) {
  Truth truth;
  truth.noise_percent = 2;
  truth.equal_fingerprints = false;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(1000);
  run.drain();
  EXPECT_GT(run.decisions("alarm").size(), 0u) << "the noise reaches the ceiling";
  for (const auto& verdict : run.decisions("verdict")) EXPECT_EQ(verdict.verdict, "chance");
  EXPECT_THAT(run.directives(""), IsEmpty());
}

struct Sources {
  const char* name;
  std::vector<std::string> verifiers;
  bool trainer_replays;
};
void PrintTo(const Sources& sources, std::ostream* out) { *out << sources.name; }

// A trainer that promises exact replay and has kernels whose order of sums varies.
class InexactRun : public ::testing::TestWithParam<Sources> {
 protected:
  SimulatedRun run_of(Truth truth) {
    truth.inexact = true;
    truth.verifiers = GetParam().verifiers;
    truth.trainer_replays = GetParam().trainer_replays;
    SimulatedRun run(truth, scenario_policy());
    run.start();
    run.train_until(1000);
    run.drain();
    return run;
  }
  // Without those of audits, which find early on that replay is not exact.
  static std::vector<RecordDecision> verdicts_of_losses(const SimulatedRun& run) {
    std::vector<RecordDecision> verdicts = run.decisions("verdict");
    std::erase_if(verdicts, [](const RecordDecision& verdict) {
      return verdict.evidence.find("\"trigger\":\"audit\"") != std::string::npos;
    });
    return verdicts;
  }
};

TEST_P(InexactRun, ChanceAccusesNoMachine) {
  Truth truth;
  truth.noise_percent = 2;
  const SimulatedRun run = run_of(truth);
  EXPECT_GT(verdicts_of_losses(run).size(), 0u) << "the noise reaches the ceiling";
  for (const auto& verdict : run.decisions("verdict"))
    EXPECT_THAT(std::string(verdict.verdict),
                AnyOf("chance", "broken_instrument", "unstable_training", "stable_training"))
        << verdict.sentence;
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
}

TEST_P(InexactRun, ABitFlipIsToldByLosses) {
  Truth truth;
  truth.bit_flips = {333};
  const SimulatedRun run = run_of(truth);
  ASSERT_GE(verdicts_of_losses(run).size(), 1u);
  EXPECT_EQ(verdicts_of_losses(run)[0].verdict, "transient_fault");
  EXPECT_THAT(verdicts_of_losses(run)[0].sentence, HasSubstr("no two replays give the same ones"));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST_P(InexactRun, FaultyNumericsIsBlamed) {
  const SimulatedRun run = run_of(numerical_fault({kGuilty}, 201, 1000));
  ASSERT_GE(verdicts_of_losses(run).size(), 1u);
  EXPECT_EQ(verdicts_of_losses(run)[0].verdict, "fp8_numerics");
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
}

INSTANTIATE_TEST_SUITE_P(By, InexactRun,
                         ::testing::Values(Sources{"two", {"v1:1", "v2:2"}, false},
                                           Sources{"one", {"v1:1"}, false},
                                           Sources{"one_and_the_trainer", {"v1:1"}, true},
                                           Sources{"two_and_the_trainer", {"v1:1", "v2:2"}, true}),
                         ::testing::PrintToStringParamName());

TEST(MachineScenarioTest, WithoutAVerifierAnOpenCaseDoesNotKeepTheRunInFp8) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 1000), with([](Policy& p) {
                     p.verifier.on_loss = "bf16";
                     p.verifier.loss_windows = 5;
                   }));
  run.start();
  run.train_until_phase("triage", 400);
  while (run.step < 600) {
    run.train_one_step();
    run.obey();
  }
  ASSERT_THAT(run.directives("set_plan"), SizeIs(1)) << "nobody answers";
  EXPECT_FALSE(run.state.investigation.has_value());
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "unexplained");
}

TEST(MachineScenarioTest, ASkippedBatchIsNotBlamedOnTheHardware) {
  const SimulatedRun run = run_scenario("OtherBatch");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "data_mismatch");
  EXPECT_EQ(run.decisions("action")[0].action, "rollback");
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(MachineScenarioTest, OtherTokensThatDoNoHarmAreSaidOnceAndAreNoEvidence) {
  const SimulatedRun run = run_scenario("HarmlessBatches");
  const auto verdicts = run.decisions("verdict");
  ASSERT_THAT(verdicts, SizeIs(2)) << "steps 333 and 353 lie in windows in a row";
  EXPECT_EQ(verdicts[0].verdict, "data_mismatch");
  EXPECT_THAT(verdicts[0].sentence, HasSubstr("step 333"));
  EXPECT_THAT(verdicts[1].sentence, HasSubstr("step 413"));
  EXPECT_THAT(run.decisions("alarm"), IsEmpty());
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_EQ(run.closed("skipped"), 3);
  EXPECT_EQ(run.state.watch.windows_judged, 47);
  for (const Effect& effect : run.effects) {
    const auto* closed = std::get_if<CloseWindow>(&effect);
    if (closed == nullptr) continue;
    EXPECT_EQ(closed->why.value_or(""),
              closed->outcome == "skipped" ? "the run took other tokens" : "");
  }
}

TEST(MachineScenarioTest, AnOffsetThatKernelsMovedIsNotCalledADrift) {
  const SimulatedRun run = run_scenario("StaleCopies");
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "kernel_bug");
  EXPECT_THAT(run.decisions("attribution"), IsEmpty());
  EXPECT_THAT(run.directives(""), IsEmpty());
}

TEST(MachineScenarioTest, ABrokenInstrumentSuspendsAlarms) {
  const Truth truth = numerical_fault({kGuilty}, 401, 1000);
  Policy policy = scenario_policy();
  policy.instrument.every = 3;
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(300);
  run.drain();
  EXPECT_FALSE(run.state.watch.instrument.broken);
  run.perturb(1.0);
  run.break_bf16();
  run.train_until(600);
  run.drain();
  ASSERT_TRUE(run.state.watch.instrument.broken);
  ASSERT_GE(run.decisions("instrument").size(), 1u);
  EXPECT_EQ(run.decisions("instrument")[0].verdict, "broken_instrument");
  EXPECT_THAT(run.directives(""), IsEmpty()) << "its gaps are not believed";
  run.make_sound();
  run.train_until(800);
  run.drain();
  EXPECT_FALSE(run.state.watch.instrument.broken);
  EXPECT_GE(run.directives("").size(), 1u);
}

TEST(MachineScenarioTest, WithoutAVerifierThePolicySaysWhatTheRunDoes) {
  SimulatedRun run(Truth(), with([](Policy& p) {
                     p.verifier.on_loss = "bf16";
                     p.verifier.loss_windows = 5;
                   }));
  run.start();
  while (run.step < 400) {
    run.train_one_step();
    run.obey();
  }
  ASSERT_THAT(run.directives("set_plan"), SizeIs(1)) << "nobody answers";
  EXPECT_THAT(run.decisions("action")[0].sentence, HasSubstr("verified by nobody"));
  run.train_until(1000);
  run.drain();
  EXPECT_THAT(run.decisions("return"), SizeIs(1)) << "they are back";
}

}  // namespace
}  // namespace gnomon::decide
