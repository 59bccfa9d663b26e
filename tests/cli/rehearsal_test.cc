// Rehearsals: whole runs of a tiny engine under the real decision core, and their traces.
#include "lab/rehearsal/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/errors.h"
#include "controller/decide/decide.h"
#include "controller/decide/gap_settings.h"
#include "lab/rehearsal/budget_findings.h"
#include "lab/rehearsal/catalogue.h"
#include "lab/rehearsal/detection.h"
#include "lab/rehearsal/findings.h"
#include "lab/rehearsal/gradient_switch.h"
#include "tests/cli/traced.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

using rehearsal::RunSetup;
using rehearsal::Trace;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;

const std::string kDown = "model.layers.1.mlp.down_proj";

class RehearsalTest : public ::testing::Test {
 protected:
  // Two layers of width 32, 120 steps, a window every ten of them.
  RunSetup tiny() {
    RunSetup setup;
    setup.configuration = "tiny";
    setup.engine = small_engine(directory_.path());
    setup.engine.batch = {.sequences = 8, .tokens = 16, .accumulation = 1};
    setup.engine.optimizer.total_steps = 120;
    setup.engine.optimizer.warmup_steps = 10;
    setup.plan = PrecisionPlan::fp8();
    setup.policy.window = {.every = 10, .steps = 10};
    setup.policy.detector.burn_in_steps = 20;
    setup.policy.attribution.scores = false;
    setup.steps = 120;
    setup.checkpoint_every = 10;
    setup.scratch = directory_.path() / "scratch";
    return setup;
  }

  static Fault fault(FaultKind kind, const std::string& site, int64_t start_step) {
    Fault result;
    result.kind = kind;
    result.site = site;
    result.start_step = start_step;
    return result;
  }

  RunSetup shifted() {
    RunSetup setup = tiny();
    setup.fault = "scale_shift";
    setup.engine.faults = {fault(FaultKind::kScaleShift, kDown, 61)};
    setup.engine.faults[0].log2_factor = 8;
    return setup;
  }

  TemporaryDirectory directory_;
};

std::vector<std::string> verdicts(const Trace& trace) {
  std::vector<std::string> result;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind == "verdict") result.push_back(each.decision.verdict);
  }
  return result;
}

TEST_F(RehearsalTest, AHealthyRunIsMeasuredAndLeftAlone) {
  const Trace trace = rehearsal::rehearse(tiny());
  EXPECT_EQ(trace.result.outcome, "completed");
  EXPECT_EQ(trace.result.step, 120);
  EXPECT_EQ(trace.result.steps_trained, 120);
  EXPECT_THAT(actions_of(trace), SizeIs(0));
  const rehearsal::Series series = rehearsal::series_of(trace);
  ASSERT_THAT(series.samples, SizeIs(10));  // of twelve windows, the first two in the burn-in
  EXPECT_EQ(series.first_faulty, 10U);
  for (const auto& sample : series.samples) EXPECT_NE(sample.d_percent, 0);
}

TEST_F(RehearsalTest, AShiftedScaleIsFoundBlamedAndPinned) {
  RunSetup reference = tiny();
  reference.plan = PrecisionPlan::bf16();
  reference.watched = false;
  const double bf16 = rehearsal::rehearse(reference).result.heldout_bf16;
  RunSetup left_alone = shifted();
  left_alone.policy.mode = decide::Mode::kObserve;
  const Trace harmed = rehearsal::rehearse(left_alone);
  const Trace trace = rehearsal::rehearse(shifted());

  EXPECT_THAT(verdicts(trace), Contains("fp8_numerics"));
  EXPECT_THAT(actions_of(trace), Contains("pin"));
  std::vector<std::string> pinned;
  for (const auto& each : trace.decisions) {
    if (each.decision.action == "pin") pinned = each.decision.sites;
  }
  EXPECT_THAT(pinned, Contains(kDown));
  EXPECT_GT(trace.result.attempts, 1);
  EXPECT_GT(trace.result.steps_trained, 120);
  EXPECT_EQ(trace.result.outcome, "completed");
  // What the fault costs when nobody acts, and what is left of it.
  const double harm = harmed.result.heldout_bf16 - bf16;
  EXPECT_GT(harm, 0.02 * bf16);
  EXPECT_LT(std::abs(trace.result.heldout_bf16 - bf16), harm / 3);
}

TEST_F(RehearsalTest, ObservingChangesNothing) {
  RunSetup observed = shifted();
  observed.policy.mode = decide::Mode::kObserve;
  RunSetup alone = shifted();
  alone.watched = false;
  const Trace trace = rehearsal::rehearse(observed);
  EXPECT_EQ(trace.result.heldout_bf16, rehearsal::rehearse(alone).result.heldout_bf16);
  EXPECT_THAT(actions_of(trace), SizeIs(0));
  EXPECT_THAT(verdicts(trace), Contains("fp8_numerics"));
  const rehearsal::Series series = rehearsal::series_of(trace);
  EXPECT_EQ(series.first_faulty, 4U);
  EXPECT_THAT(series.samples, SizeIs(10));
}

TEST_F(RehearsalTest, AFlippedBitIsNotBlamedOnFp8) {
  RunSetup setup = tiny();
  setup.engine.faults = {fault(FaultKind::kBitFlip, kDown + ".weight", 65)};
  setup.engine.faults[0].bit = 30;
  const Trace trace = rehearsal::rehearse(setup);
  EXPECT_THAT(verdicts(trace), Contains("transient_fault"));
  EXPECT_THAT(verdicts(trace), Not(Contains("fp8_numerics")));
  EXPECT_THAT(actions_of(trace), Contains("rollback"));
  EXPECT_TRUE(std::isfinite(trace.result.heldout_bf16));
}

// It costs no loss, no window would have been audited, and its weight is trained on.
TEST_F(RehearsalTest, AFlippedBitThatNoLossShowsIsSeenInTheNextStep) {
  RunSetup setup = tiny();
  setup.engine.faults = {fault(FaultKind::kBitFlip, kDown + ".weight", 65)};
  setup.engine.faults[0].bit = 20;
  const Trace trace =
      Trace::from_text(rehearsal::rehearse(setup).to_text(), "a trace that was just made");
  EXPECT_THAT(verdicts(trace), ElementsAre("transient_fault"));
  EXPECT_THAT(actions_of(trace), ElementsAre("rollback"));
  std::vector<int64_t> seen;
  for (const auto& [at, event] : trace.events) {
    const auto* step = std::get_if<decide::StepReported>(&event);
    if (step != nullptr && step->state_changed) seen.push_back(step->step);
  }
  EXPECT_THAT(seen, ElementsAre(66));
}

// Three kinds of lies of one of two verifiers; the trainer replays what they disagree about.
TEST_F(RehearsalTest, ALyingVerifierIsNamedAndNothingElseHappens) {
  for (rehearsal::Lie lie : {rehearsal::Lie::kLow, rehearsal::Lie::kSame, rehearsal::Lie::kBits}) {
    RunSetup setup = tiny();
    setup.policy.mode = decide::Mode::kEnforce;
    setup.steps = 400;
    setup.engine.optimizer.total_steps = 400;
    setup.lie = lie;
    setup.lies_from = 61;
    const Trace trace = rehearsal::rehearse(setup);
    std::vector<std::string> actions;
    for (const auto& each : trace.decisions) {
      if (each.decision.kind == "action") actions.push_back(each.decision.sentence);
    }
    ASSERT_THAT(actions, SizeIs(1)) << static_cast<int>(lie);
    EXPECT_THAT(actions[0], ::testing::HasSubstr("verifier-2"));
    EXPECT_EQ(trace.result.outcome, "completed");
  }
}

// Two healthy runs and two with a liar, enforced and observed: of each pair one is counted.
TEST_F(RehearsalTest, BudgetFindingsCountHealthyRunsAndLiars) {
  RunSetup setup = tiny();
  setup.policy.window.every = 0;
  setup.policy.verification.budget_percent = 60;
  setup.steps = setup.engine.optimizer.total_steps = 400;
  setup.lies_from = 61;
  std::vector<Trace> traces;
  for (const rehearsal::Lie lie : {rehearsal::Lie::kNone, rehearsal::Lie::kLow}) {
    for (const decide::Mode mode : {decide::Mode::kEnforce, decide::Mode::kObserve}) {
      setup.lie = lie;
      setup.fault = lie == rehearsal::Lie::kNone ? "none" : "liar:low";
      setup.policy.mode = mode;
      traces.push_back(rehearsal::rehearse(setup));
    }
  }
  auto found = rehearsal::budget_findings(traces, setup.policy);
  const auto& healthy = found.at("healthy").at("budget");
  EXPECT_EQ(healthy.at("runs"), 1);
  EXPECT_EQ(healthy.at("actions"), 0);
  const auto measured = std::ranges::count_if(
      traces[0].windows, [](const auto& window) { return window.d_percent.has_value(); });
  EXPECT_EQ(healthy.at("windows"), measured);
  EXPECT_GE(measured, 5);
  const auto& liar = found.at("liars").at("liar:low");
  EXPECT_EQ(liar.at("runs"), 1);
  EXPECT_EQ(liar.at("named"), 1);
  EXPECT_EQ(found.at("liars").at("honest_named"), 0);
  EXPECT_EQ(found.at("cores").at("twins_that_differ"), 0);

  // What `observe` would have done is a false action, too.
  decide::RecordDecision pin;
  pin.kind = "action";
  pin.action = "pin";
  traces[1].decisions.push_back({.at = 100, .decision = pin});
  found = rehearsal::budget_findings(traces, setup.policy);
  EXPECT_EQ(found.at("healthy").at("budget").at("actions"), 1);
}

// Windows of ten steps from step 20 on: the fifth trains steps 61 to 70.
TEST_F(RehearsalTest, AWindowIsFilledByAFaultThatItsFirstStepHas) {
  for (const auto& [first_step, filled] : {std::pair{61, 4U}, std::pair{65, 5U}}) {
    RunSetup setup = shifted();
    setup.policy.mode = decide::Mode::kObserve;
    setup.engine.faults[0].start_step = first_step;
    const rehearsal::Series series = rehearsal::series_of(rehearsal::rehearse(setup));
    EXPECT_EQ(series.first_faulty, 4U);
    EXPECT_EQ(series.first_filled, filled);
  }
}

TEST(GradientSwitchTest, CallsAreCountedFromTheFaultOn) {
  Trace calm, restless;
  for (int64_t at = 1; at <= 400; ++at) {
    decide::StepReported step;
    step.step = at;
    step.loss = 2;
    step.grad_norm = 1 + 0.05 * std::sin(static_cast<double>(at));
    calm.events.push_back({static_cast<double>(at), step});
    if (at >= 300) *step.grad_norm *= 3;
    restless.events.push_back({static_cast<double>(at), step});
  }
  rehearsal::RecordedRun healthy, faulty;
  healthy.trace = &calm;
  faulty.trace = &restless;
  faulty.label.fault_from = 300;
  for (auto* run : {&healthy, &faulty}) run->above_bf16 = run->above_fp8 = 0;
  const boost::json::object found = rehearsal::gradient_switch({healthy, faulty});
  EXPECT_EQ(found.at("healthy").at("called"), 0);
  EXPECT_EQ(found.at("harmless").at("called"), 1);
  EXPECT_EQ(found.at("harmless").at("before_any_alarm"), 1);
  EXPECT_LE(found.at("harmless").at("median_steps").as_double(), 10);
  faulty.label.fault_from = 350;
  EXPECT_EQ(rehearsal::gradient_switch({faulty}).at("harmless").at("called"), 0);
}

TEST_F(RehearsalTest, AStuckBitOfTheDeviceHoldsTheRun) {
  RunSetup setup = tiny();
  setup.engine.faults = {fault(FaultKind::kStuckBit, kDown, 61)};
  setup.engine.faults[0].tensor = "output";
  setup.engine.faults[0].bit = 14;
  const Trace trace = rehearsal::rehearse(setup);
  EXPECT_THAT(verdicts(trace), Contains("persistent_fault"));
  EXPECT_EQ(trace.result.outcome, "held");
  EXPECT_LT(trace.result.step, 120);
}

TEST_F(RehearsalTest, TheSameRehearsalGivesTheSameTrace) {
  RunSetup setup = shifted();
  const std::string first = rehearsal::rehearse(setup).to_text();
  setup.scratch = directory_.path() / "elsewhere";
  EXPECT_EQ(rehearsal::rehearse(setup).to_text(), first);
  setup.engine.seed = 2;
  EXPECT_NE(rehearsal::rehearse(setup).to_text(), first);
}

TEST_F(RehearsalTest, ATraceIsReadBackToTheBit) {
  for (const bool blows_up : {false, true}) {
    RunSetup setup = shifted();
    if (blows_up) {
      setup.engine.faults = {fault(FaultKind::kLearningRateSpike, "", 61)};
      setup.engine.faults[0].factor = 1e6;
    }
    const Trace trace = rehearsal::rehearse(setup);
    const std::filesystem::path file = directory_.path() / "run.jsonl";
    trace.write(file);
    const Trace read = Trace::read(file);
    EXPECT_EQ(read.to_text(), trace.to_text());
    ASSERT_EQ(read.events.size(), trace.events.size());
    for (size_t i = 0; i < read.events.size(); ++i) {
      EXPECT_EQ(read.events[i].at, trace.events[i].at);
      EXPECT_EQ(decide::event_to_json(read.events[i].event),
                decide::event_to_json(trace.events[i].event));
    }
  }
}

TEST_F(RehearsalTest, DecisionsComeAgainFromTheTrace) {
  const RunSetup setup = shifted();
  const Trace trace =
      Trace::from_text(rehearsal::rehearse(setup).to_text(), "a trace that was just made");
  decide::State state;
  std::vector<std::string> again;
  for (const auto& [at, event] : trace.events) {
    decide::Outcome outcome = decide::decide(std::move(state), event, setup.policy, at);
    state = std::move(outcome.state);
    for (const decide::Effect& effect : outcome.effects) {
      if (std::holds_alternative<decide::RecordDecision>(effect)) {
        again.push_back(decide::effect_to_json(effect));
      }
    }
  }
  std::vector<std::string> recorded;
  for (const auto& each : trace.decisions) {
    recorded.push_back(decide::effect_to_json(each.decision));
  }
  EXPECT_FALSE(recorded.empty());
  EXPECT_EQ(again, recorded);
}

TEST_F(RehearsalTest, FindingsAreDrawnFromTraces) {
  std::vector<Trace> traces;
  for (const PrecisionPlan& plan : {PrecisionPlan::bf16(), tiny().plan}) {
    for (int64_t perturb : {0, 1}) {
      RunSetup reference = tiny();
      reference.plan = plan;
      reference.watched = false;
      reference.perturb = perturb;
      traces.push_back(rehearsal::rehearse(reference));
    }
  }
  EXPECT_NE(traces[0].result.heldout_bf16, traces[1].result.heldout_bf16);
  traces.push_back(rehearsal::rehearse(tiny()));
  traces.push_back(rehearsal::rehearse(shifted()));
  for (RunSetup observed : {tiny(), shifted()}) {
    observed.policy.mode = decide::Mode::kObserve;
    traces.push_back(rehearsal::rehearse(observed));
  }

  const boost::json::object found =
      rehearsal::findings(traces, decide::gap_settings(tiny().policy));
  EXPECT_EQ(found.at("healthy_windows"), 10);
  EXPECT_EQ(found.at("false_alarms"), 0);
  EXPECT_EQ(found.at("healthy_runs"), 1);
  EXPECT_EQ(found.at("actions_on_healthy"), 0);
  EXPECT_EQ(found.at("harmful_runs"), 1);
  EXPECT_EQ(found.at("caught_share"), 1.0);
  EXPECT_EQ(found.at("median_delay_windows"), 1.0);
  EXPECT_EQ(found.at("mean_delay_windows"), 1.0);
  EXPECT_EQ(found.at("triage_accuracy"), 1.0);
  EXPECT_EQ(found.at("confusion").at("numerics").at("fp8_numerics"), 1);
  EXPECT_EQ(found.at("triage_judged"), 1);
  EXPECT_EQ(found.at("by_fault").as_object().size(), 1u);
  EXPECT_EQ(found.at("ended_harmed_runs"), 1);
  EXPECT_LT(found.at("mean_final_percent").as_double(), 2) << "unattended it is far more";
  EXPECT_EQ(found.at("runs").as_array().size(), 4u);
  EXPECT_EQ(found.at("healthy_cost_percent").as_object().size(), 1u);
  EXPECT_EQ(found.at("guilty_site_pinned_share"), 1.0);
  EXPECT_GT(found.at("replays_per_attribution").as_double(), 1);
  const boost::json::object& blame = found.at("attribution").as_object();
  EXPECT_EQ(blame.at("found"), 1);
  EXPECT_EQ(blame.at("leave_one_out"), 15.0) << "two layers of seven sites, and lm_head";
  EXPECT_GE(blame.at("plain_bisection").as_double(), 4) << "log2 of 15, and more";
  EXPECT_LE(blame.at("plain_bisection").as_double(), 6);
  // Less than 1.3: ten or twenty of 120 steps again, a site in BF16, and what the gap is worth.
  EXPECT_GT(found.at("speedup_kept").as_double(), 0.9);
  EXPECT_LT(found.at("speedup_kept").as_double(), 1.25);
  EXPECT_EQ(found.at("neighbour_correlation").as_object().size(), 1u);
  EXPECT_EQ(found.at("rivals").at("fixed").at("caught_share"), 1.0);
}

TEST_F(RehearsalTest, CheckpointsThatNobodyNeedsAreRemoved) {
  const RunSetup setup = tiny();
  rehearsal::rehearse(setup);
  int64_t left = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(setup.scratch)) {
    left += entry.path().filename() == "manifest.json";
  }
  EXPECT_GE(left, 1);
  EXPECT_LE(left, 6);
}

TEST_F(RehearsalTest, ADamagedTraceIsRefused) {
  RunSetup setup = tiny();
  setup.watched = false;
  const std::string text = rehearsal::rehearse(setup).to_text();
  EXPECT_THROW(Trace::from_text(text.substr(0, text.rfind("{\"result\"")), "cut.jsonl"),
               FormatError);
  EXPECT_THROW(Trace::from_text("{\"steps\":3}\n" + text, "odd.jsonl"), FormatError);
}

TEST_F(RehearsalTest, StepsAreAMultipleOfTheCheckpointInterval) {
  RunSetup setup = tiny();
  setup.steps = 125;
  EXPECT_THROW(rehearsal::rehearse(setup), ConfigError);
}

TEST(CatalogueTest, EveryFaultIsOneThatItsConfigurationCanHave) {
  TemporaryDirectory directory;
  write_token_dataset(directory.path() / "data", {uniform_tokens(1, 257, 2000)},
                      uniform_tokens(2, 257, 2000), 257);
  for (const char* name : {"dense", "budget"}) {
    const rehearsal::Study& study = rehearsal::study_from_name(name);
    std::vector<std::string> files;
    for (const rehearsal::CatalogueRun& run : rehearsal::catalogue({.study = name})) {
      files.push_back(run.file_name());
      const RunSetup setup =
          rehearsal::setup_of(study, run, directory.path() / "data", directory.path());
      const bool healthy = setup.engine.faults.empty() && setup.lie == rehearsal::Lie::kNone;
      EXPECT_EQ(healthy, run.fault == "none");
      if (run.seed > 1) continue;
      EXPECT_NO_THROW(Engine{setup.engine}) << run.file_name();
      EXPECT_NO_THROW(
          setup.plan.check_sites(setup.engine.model.sites(), setup.engine.model.layers));
    }
    std::ranges::sort(files);
    EXPECT_EQ(std::ranges::adjacent_find(files), files.end());
  }
  EXPECT_THROW(rehearsal::study_from_name("sparse"), ConfigError);
}

TEST(CatalogueTest, ASeedRecordedAloneHasTheRunsItHasAmongOthers) {
  std::set<std::string> together, alone;
  for (const auto& run : rehearsal::catalogue({.study = "budget", .seeds = 3}))
    together.insert(run.file_name());
  for (int64_t seed = 1; seed <= 3; ++seed) {
    for (const auto& run :
         rehearsal::catalogue({.study = "budget", .seeds = 1, .first_seed = seed}))
      alone.insert(run.file_name());
  }
  EXPECT_EQ(alone, together);
}

TEST(DetectionTest, DelaysAreCountedFromTheFaultAndFalseAlarmsBeforeIt) {
  rehearsal::Series series;
  for (int i = 0; i < 40; ++i) {
    const double noise = i % 2 == 0 ? 0.04 : -0.04;
    series.samples.push_back({.d_percent = noise + (i < 30 ? 0.0 : 0.4)});
  }
  series.first_faulty = 30;
  decide::GapSettings fixed;
  fixed.kind = "fixed";
  fixed.ceiling_percent = 1e9;
  EXPECT_EQ(rehearsal::replay_detector(series, fixed).delay, 1);
  EXPECT_EQ(rehearsal::replay_detector(series, fixed).false_alarms, 0);
  EXPECT_EQ(rehearsal::replay_detector(series, fixed).healthy_windows, 30);
  fixed.threshold = 0.01;
  EXPECT_EQ(rehearsal::replay_detector(series, fixed).false_alarms, 15);
  fixed.threshold = 0.42;
  EXPECT_EQ(rehearsal::replay_detector(series, fixed).delay, 1);
  fixed.threshold = 0.5;
  EXPECT_EQ(rehearsal::replay_detector(series, fixed).delay, std::nullopt);
  // As loose as no false alarm allows.
  const decide::GapSettings equal = rehearsal::at_equal_false_alarms(fixed, {series}, 0);
  EXPECT_NEAR(equal.threshold.value_or(0), 0.04, 1e-6);
}

}  // namespace
}  // namespace gnomon::test
