// What is ordered of a trainer that cannot do all that ours can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "controller/decide/run_verdict.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

Truth fault_under(Capabilities capabilities, int64_t to = 460) {
  Truth truth = numerical_fault({kGuilty}, 201, to);
  truth.capabilities = std::move(capabilities);
  return truth;
}

SimulatedRun supervised(Truth truth, Policy policy = scenario_policy()) {
  SimulatedRun run(std::move(truth), std::move(policy));
  run.start();
  run.train_until(1000);
  run.drain();
  return run;
}

std::vector<std::string> ordered_kinds(const SimulatedRun& run) {
  std::vector<std::string> all;
  for (const IssueDirective& directive : run.directives("")) all.push_back(directive.kind);
  return all;
}

TEST(CapabilitiesTest, ATrainerThatSwitchesLayersGetsTheGuiltyLayerPinned) {
  const SimulatedRun run = supervised(fault_under({.plan = "layer"}));
  ASSERT_THAT(run.decisions("attribution"), SizeIs(1));
  const std::vector<std::string> sites = run.decisions("attribution")[0].sites;
  EXPECT_THAT(sites, AllOf(SizeIs(7), Contains(kGuilty), Each(StartsWith("model.layers.2."))));
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  const PrecisionPlan plan = PrecisionPlan::parse(run.directives("rollback")[0].plan);
  for (const std::string& site : site_names(4)) {
    EXPECT_EQ(plan.resolve(site, 4).any_fp8(), !site.starts_with("model.layers.2.")) << site;
  }
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(CapabilitiesTest, EachRescueOfALayerIsOfWholeLayers) {
  const SimulatedRun run = supervised(fault_under({.plan = "layer"}));
  int64_t rescues = 0;
  for (const Effect& effect : run.effects) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    if (order == nullptr || order->purpose != "attribution" || order->arm != "plan") continue;
    ++rescues;
    const PrecisionPlan plan = PrecisionPlan::parse(order->plan);
    for (int layer = 0; layer < 4; ++layer) {
      std::set<bool> low;
      for (const std::string& site : site_names(4)) {
        if (site.starts_with("model.layers." + std::to_string(layer) + "."))
          low.insert(plan.resolve(site, 4).any_fp8());
      }
      EXPECT_THAT(low, SizeIs(1)) << "layer " << layer << " of\n" << order->plan;
    }
  }
  EXPECT_GT(rescues, 0);
}

TEST(CapabilitiesTest, ATrainerThatSwitchesOnlyTheRunIsNotSearchedForSites) {
  const SimulatedRun run = supervised(fault_under({.plan = "run"}));
  EXPECT_EQ(run.orders("attribution"), 0);
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  EXPECT_FALSE(
      PrecisionPlan::parse(run.directives("rollback")[0].plan).resolve(kGuilty, 4).any_fp8());
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(CapabilitiesTest, ATrainerWithoutRollbackIsPinnedFromTheNextStep) {
  const SimulatedRun run = supervised(fault_under({.rollback = "none"}, 300));
  EXPECT_THAT(ordered_kinds(run), Not(Contains("rollback")));
  ASSERT_GE(run.directives("set_plan").size(), 1u);
  EXPECT_THAT(run.directives("set_plan")[0].plan, HasSubstr(kGuilty));
}

TEST(CapabilitiesTest, ATrainerWithoutRollbackIsHeldOnNonFiniteWeights) {
  Truth nan = spike(333, NAN, kGuilty);
  nan.capabilities.rollback = "none";
  SimulatedRun run(nan, scenario_policy());
  run.start();
  run.train_until(600);
  EXPECT_THAT(ordered_kinds(run), AllOf(Not(Contains("rollback")), Contains("pause")));
  EXPECT_THAT(run.decisions("action").back().sentence, HasSubstr("its trainer cannot go back"));
  Truth flip;
  flip.bit_flips = {333};
  flip.capabilities.rollback = "none";
  EXPECT_THAT(ordered_kinds(supervised(flip)), AllOf(Not(Contains("rollback")), Contains("pause")));
}

TEST(CapabilitiesTest, APlanWaitsForTheRestartThatItNeedsAndNotForever) {
  const Policy policy = with([](Policy& p) { p.directives.timeout_seconds = 60; });
  SimulatedRun run(fault_under({.when = "restart", .rollback = "none"}, 1000), policy);
  run.ignores = {"set_plan"};
  run.start();
  run.train_until_phase("containing", 400);
  run.train_until(run.step + 200);
  EXPECT_EQ(phase_name(run.state), "containing") << "three time-outs and more have passed";
  ASSERT_GE(run.decisions("directive").size(), 1u);
  EXPECT_THAT(run.decisions("directive").back().sentence,
              HasSubstr("waits for the trainer to be started again"));
  EXPECT_THAT(run.decisions("directive"), SizeIs(1)) << "it is said once";
  // Started again, and deaf still: now it is overdue like any other.
  run.restart_from(run.step / 10 * 10);
  run.train_until(run.step + 100);
  EXPECT_THAT(run.decisions("directive").back().sentence, HasSubstr("was not carried out within"));
}

TEST(CapabilitiesTest, ARollbackBringsAPlanAndWaitsForTheRestartToo) {
  const Policy policy = with([](Policy& p) { p.directives.timeout_seconds = 60; });
  SimulatedRun run(fault_under({.when = "restart"}, 1000), policy);
  run.ignores = {"rollback"};
  run.start();
  run.train_until_phase("containing", 400);
  run.train_until(run.step + 200);
  EXPECT_EQ(phase_name(run.state), "containing");
  ASSERT_GE(run.decisions("directive").size(), 1u);
  EXPECT_THAT(run.decisions("directive").back().sentence,
              HasSubstr("waits for the trainer to be started again"));
}

TEST(CapabilitiesTest, APlanThatIsTakenAtTheRestartContains) {
  const Policy policy = with([](Policy& p) { p.directives.timeout_seconds = 60; });
  SimulatedRun run(fault_under({.when = "restart", .rollback = "none"}, 1000), policy);
  run.ignores = {"set_plan"};
  run.start();
  run.train_until_phase("containing", 400);
  run.train_until(run.step + 200);
  run.restart_from(run.step / 10 * 10);
  run.obey_late();
  run.train_until(run.step + 300);
  EXPECT_TRUE(run.state.containment);
  EXPECT_THAT(run.plan(), HasSubstr(kGuilty));
}

TEST(CapabilitiesTest, WhatOnlyTheTrainerHasInMemoryTheTrainerReplays) {
  Truth truth = numerical_fault({kGuilty}, 201, 460);
  truth.in_memory = truth.trainer_replays = true;
  truth.verifiers = {};
  const SimulatedRun run = supervised(truth);
  for (const Effect& effect : run.effects) {
    if (const auto* order = std::get_if<OrderReplay>(&effect)) {
      EXPECT_TRUE(order->on_trainer) << order->arm;
    }
  }
  ASSERT_THAT(run.decisions("attribution"), SizeIs(1));
  EXPECT_THAT(run.decisions("attribution")[0].sites, ::testing::ElementsAre(kGuilty));
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(CapabilitiesTest, AHealthyRunInMemoryIsLeftAlone) {
  Truth truth;
  truth.in_memory = truth.trainer_replays = true;
  truth.verifiers = {};
  const SimulatedRun run = supervised(truth);
  EXPECT_EQ(run.closed("quiet"), 50);
  EXPECT_THAT(run.decisions(""), IsEmpty());
}

// A trainer of another framework: no norms, no perturbed arm, no scores.
TEST(CapabilitiesTest, ARunWithoutGradientNormsIsVerifiedByItsLosses) {
  SimulatedRun run(spike(333, 3.0, kGuilty), scenario_policy());
  run.filter = [&](const Event& event) {
    if (const auto* step = std::get_if<StepReported>(&event); step && step->grad_norm) {
      StepReported bare = *step;
      bare.grad_norm.reset();
      run.feed(bare);
      return false;
    }
    return true;
  };
  run.start();
  run.train_until(1000);
  run.drain();
  ASSERT_GE(run.decisions("alarm").size(), 1u);
  EXPECT_EQ(run.decisions("alarm")[0].step, 333);
  EXPECT_THAT(run.decisions("verdict")[0].verdict, "fp8_numerics");
}

TEST(CapabilitiesTest, CompiledCodeIsToldFromFp8) {
  Truth truth = fault_under({.compiled = true});
  truth.in_compiler = true;
  const SimulatedRun run = supervised(truth);
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "kernel_bug");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("without the compiler"));
  EXPECT_EQ(supervised(fault_under({.compiled = true})).decisions("verdict")[0].verdict,
            "fp8_numerics");
}

TEST(CapabilitiesTest, AnInstrumentThatNobodyCanCheckIsSaidOnceAndNotAskedForEver) {
  SimulatedRun run(Truth(), with([](Policy& p) { p.instrument.every = 20; }));
  run.filter = [&](const Event& event) {
    const auto* done = std::get_if<ReplayFinished>(&event);
    if (done == nullptr || done->arm != "bf16-perturbed") return true;
    run.feed(ReplayFailed{done->replay, done->window, done->arm,
                          "no verifier that speaks can do the arm bf16-perturbed"});
    return false;
  };
  run.start();
  run.train_until(1000);
  run.drain();
  int64_t asked = 0;
  for (const Effect& effect : run.effects) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    asked += order != nullptr && order->arm == "bf16-perturbed" ? 1 : 0;
  }
  EXPECT_LE(asked, 3 + 50 / 20);
  ASSERT_THAT(run.decisions("instrument"), SizeIs(1));
  EXPECT_THAT(run.decisions("instrument")[0].sentence,
              HasSubstr("no verifier that speaks can do the arm bf16-perturbed"));
}

TEST(CapabilitiesTest, AnswersWithoutALossAtTheEndAreSaidAndLeaveTheRunUnverified) {
  SimulatedRun run(Truth(), scenario_policy());
  run.lie = [](ReplayFinished& answer) { answer.replay_end_loss_bf16.reset(); };
  run.start();
  run.train_until(400);
  EXPECT_THAT(run.decisions("instrument")[0].sentence,
              HasSubstr("the held-out loss of the BF16 replay's end was not measured"));
  const VerdictFacts facts = verdict_facts(run.state, run.policy);
  EXPECT_EQ(facts.standing.kind, VerdictKind::kUnverified);
  EXPECT_GE(run.state.watch.unverified_windows, 10);
}

}  // namespace
}  // namespace gnomon::decide
