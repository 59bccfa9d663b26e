// Verifiers that lie. Nobody's word is enough: whatever one of them says, no healthy run leaves
// FP8, and a fault is found all the same where somebody honest can be asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Lie = std::function<void(ReplayFinished&)>;

bool in_bf16(const ReplayFinished& answer) { return answer.arm.starts_with("bf16"); }

// Its BF16 replays end this much higher.
Lie off_by(double percent) {
  return [percent](ReplayFinished& answer) {
    if (in_bf16(answer) && answer.replay_end_loss_bf16)
      *answer.replay_end_loss_bf16 *= 1 + percent / 100;
  };
}

// The run's end lies this much higher, as it says.
Lie end_off_by(double percent) {
  return [percent](ReplayFinished& answer) {
    if (answer.run_end_loss_bf16) *answer.run_end_loss_bf16 *= 1 + percent / 100;
  };
}

Lie no_difference() {
  return [](ReplayFinished& answer) {
    if (in_bf16(answer) && answer.run_end_loss_bf16)
      answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
}

// The BF16 end loss of the window before.
Lie stale() {
  return [last = std::optional<double>()](ReplayFinished& answer) mutable {
    if (answer.purpose != "shadow" || !answer.replay_end_loss_bf16) return;
    const double own = *answer.replay_end_loss_bf16;
    if (last) answer.replay_end_loss_bf16 = *last;
    last = own;
  };
}

Lie constant(double loss) {
  return [loss](ReplayFinished& answer) {
    if (in_bf16(answer)) answer.replay_end_loss_bf16 = loss;
  };
}

struct Scene {
  std::string name;
  Lie lie;
  std::vector<std::string> liars = {"v1:1"};
  std::vector<std::string> verifiers = {"v1:1", "v2:2"};
  bool trainer = false;
  int64_t from_step = 0;
  int64_t every = 1;  // of its answers
  bool equal_fingerprints = true;
  bool named = true;  // there is somebody who can say who is wrong
};
void PrintTo(const Scene& scene, std::ostream* out) { *out << scene.name; }

SimulatedRun played(const Scene& scene, Truth truth, Policy policy = scenario_policy()) {
  truth.verifiers = scene.verifiers;
  truth.trainer_replays = scene.trainer;
  truth.equal_fingerprints = scene.equal_fingerprints;
  truth.replays_per_step_percent = 100;
  SimulatedRun run(truth, policy);
  int64_t answers = 0;
  run.lie = [&, lie = scene.lie](ReplayFinished& answer) {
    if (!std::ranges::count(scene.liars, answer.verifier) || run.step < scene.from_step) return;
    if (answers++ % scene.every == 0) lie(answer);
  };
  run.start();
  run.train_until(1000);
  run.drain();
  return run;
}

std::vector<std::string> verdicts(const SimulatedRun& run) {
  std::vector<std::string> names;
  for (const RecordDecision& decision : run.decisions("")) {
    if (decision.verdict != "none" && !decision.verdict.empty()) names.push_back(decision.verdict);
  }
  return names;
}

class Liar : public ::testing::TestWithParam<Scene> {};
class NamedLiar : public Liar {};

TEST_P(Liar, HarmsNoHealthyRun) {
  const Scene& scene = GetParam();
  const SimulatedRun run = played(scene, Truth());
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_FALSE(run.paused);
  EXPECT_THAT(verdicts(run), Contains("broken_instrument"));
  EXPECT_THAT(verdicts(run), Not(Contains("fp8_numerics")));
  EXPECT_THAT(verdicts(run), Not(Contains("kernel_bug")));
  for (const std::string& name : run.state.trust.quarantined)
    EXPECT_THAT(scene.liars, Contains(name)) << "an honest one is blamed";
  if (scene.named) {
    for (const std::string& liar : scene.liars)
      EXPECT_THAT(run.state.trust.quarantined, Contains(liar));
    EXPECT_FALSE(run.state.watch.instrument.broken) << "the others go on";
    EXPECT_LT(std::sqrt(run.state.watch.gap.scale.variance), 0.15) << "the detector is not blind";
  }
}

// Half of the fault's damage at least must not come about.
TEST_P(NamedLiar, HidesNoFaultFromTheOthers) {
  const Scene& scene = GetParam();
  const Truth truth = numerical_fault({kGuilty}, 401, 1001);
  const SimulatedRun run = played(scene, truth);
  EXPECT_THAT(verdicts(run), Contains("fp8_numerics"));
  EXPECT_NEAR(run.damage, 0, 5) << "of 120%";
  EXPECT_THAT(run.decisions("attribution").back().sites, ElementsAre(kGuilty));
}

const std::vector<std::string> kThree = {"v1:1", "v2:2", "v3:3"};

const std::vector<Scene> kScenes = {
    Scene{"LowBesideTrainer", off_by(-1.4), {"v1:1"}, {"v1:1", "v2:2"}, true},
    Scene{"LowBesideTrainerSecond", off_by(-1.4), {"v2:2"}, {"v1:1", "v2:2"}, true},
    Scene{"LowAmongThree", off_by(-1.4), {"v2:2"}, kThree},
    Scene{"HighAmongThree", off_by(1.4), {"v3:3"}, kThree},
    Scene{"ALittleLow", off_by(-0.5), {"v1:1"}, {"v1:1", "v2:2"}, true},
    Scene{"VeryLittleLow", off_by(-0.1), {"v1:1"}, {"v1:1", "v2:2"}, true},
    Scene{"ALittleHigh", off_by(0.5), {"v2:2"}, kThree},
    Scene{"TheRunsEnd", end_off_by(1.4), {"v2:2"}, kThree},
    Scene{"Later", off_by(-0.5), {"v1:1"}, {"v1:1", "v2:2"}, true, 300},
    Scene{"LaterALot", off_by(-3), {"v1:1"}, kThree, false, 300},
    Scene{"StaleSoon", stale(), {"v2:2"}, kThree, false, 40},
    Scene{"NowAndThen", off_by(-1.4), {"v1:1"}, kThree, false, 200, 3},
    Scene{"Stale", stale(), {"v1:1"}, {"v1:1", "v2:2"}, true},
    Scene{"StaleLater", stale(), {"v2:2"}, kThree, false, 300},
    Scene{"Constant", constant(3.1), {"v1:1"}, {"v1:1", "v2:2"}, true},
    Scene{"NoDifference", no_difference(), {"v1:1"}, {"v1:1", "v2:2"}, true},
    Scene{"NoDifferenceLater", no_difference(), {"v1:1"}, kThree, false, 300},
    Scene{"OtherDevices", off_by(-1.4), {"v1:1"}, kThree, true, 0, 1, false},
    Scene{"TwoLiars", off_by(-1.4), {"v1:1"}, {"v1:1", "v2:2"}, false, 0, 1, true, false},
    Scene{"Alone", off_by(-1.4), {"v1:1"}, {"v1:1"}, false, 0, 1, true, false},
    Scene{"AloneMore", off_by(-5), {"v1:1"}, {"v1:1"}, false, 0, 1, true, false},
    Scene{"AloneLater", off_by(-1.4), {"v1:1"}, {"v1:1"}, false, 400, 1, true, false},
    Scene{"AloneBesideTrainer", off_by(-1.4), {"v1:1"}, {"v1:1"}, true, 0, 1, true, false},
    Scene{"AloneLittle", off_by(-0.5), {"v1:1"}, {"v1:1"}, true, 0, 1, true, false},
    Scene{"AloneStale", stale(), {"v1:1"}, {"v1:1"}, false, 0, 1, true, false},
    Scene{"AloneConstant", constant(3.1), {"v1:1"}, {"v1:1"}, false, 0, 1, true, false},
    Scene{"AloneNoDifference", no_difference(), {"v1:1"}, {"v1:1"}, false, 0, 1, true, false},
};

std::vector<Scene> named_scenes() {
  std::vector<Scene> named;
  std::ranges::copy_if(kScenes, std::back_inserter(named), &Scene::named);
  return named;
}

std::string name_of(const testing::TestParamInfo<Scene>& scene) { return scene.param.name; }

INSTANTIATE_TEST_SUITE_P(All, Liar, ::testing::ValuesIn(kScenes), name_of);
INSTANTIATE_TEST_SUITE_P(All, NamedLiar, ::testing::ValuesIn(named_scenes()), name_of);

// Two liars that tell different lies stand alone each; the trainer and the honest one agree.
// What one of them alone says of a window is no verdict, whatever it is.
struct Claim {
  std::string name;
  Lie lie;
};
void PrintTo(const Claim& claim, std::ostream* out) { *out << claim.name; }

class LoneClaim : public ::testing::TestWithParam<Claim> {
 protected:
  SimulatedRun lied_to(Truth truth, std::vector<std::string> verifiers) const {
    Scene scene{"", GetParam().lie};
    scene.verifiers = std::move(verifiers);
    return played(scene, std::move(truth));
  }
};

TEST_P(LoneClaim, IsNoVerdictOverAHealthyRunAndItsAuthorIsNamed) {
  const SimulatedRun run = lied_to(Truth(), {"v1:1", "v2:2", "v3:3"});
  EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v1:1"));
  EXPECT_EQ(run.state.standing.condition, "good");
  EXPECT_THAT(verdicts(run), Not(Contains("data_mismatch")));
  EXPECT_THAT(verdicts(run), Not(Contains("unstable_training")));
}

TEST_P(LoneClaim, HidesNoFaultFromTwoThatAreHonest) {
  for (const double percent : {0.02, 0.2}) {
    const SimulatedRun run =
        lied_to(numerical_fault({kGuilty}, 401, 1001, percent), {"v1:1", "v2:2", "v3:3"});
    EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v1:1"));
    EXPECT_THAT(verdicts(run), Contains("fp8_numerics"));
    EXPECT_NEAR(run.damage, 0, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Claims, LoneClaim,
    ::testing::Values(Claim{"other_tokens",
                            [](ReplayFinished& answer) {
                              if (answer.purpose != "shadow") return;
                              answer.first_other_batch_step = answer.steps.at(0);
                              answer.other_batches = {{answer.steps.at(0), "run", "data"}};
                            }},
                      Claim{"not_finite",
                            [](ReplayFinished& answer) {
                              if (answer.purpose == "shadow") answer.replay_end_loss_bf16 = NAN;
                            }}),
    [](const auto& claim) { return claim.param.name; });

TEST(LiarTest, TwoThatContradictEachOtherAreBothNamed) {
  SimulatedRun run = [] {
    Scene scene{"", off_by(-1.4), {"v1:1", "v2:2"}, kThree, true};
    scene.lie = [](ReplayFinished& answer) {
      off_by(answer.verifier == "v1:1" ? -1.4 : 2)(answer);
    };
    return played(scene, Truth());
  }();
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_THAT(run.state.trust.quarantined, ::testing::UnorderedElementsAre("v1:1", "v2:2"));
}

// Two verifiers, a trainer that does not replay: its reported losses bear the honest one out.
TEST(LiarTest, NoDifferenceHidesNoFaultFromTwo) {
  for (const char* liar : {"v1:1", "v2:2"}) {
    for (const int64_t from : {0, 380}) {
      Scene scene{"", no_difference(), {liar}, {"v1:1", "v2:2"}, false, from};
      const SimulatedRun run = played(scene, numerical_fault({kGuilty}, 401, 1001));
      EXPECT_THAT(run.state.trust.quarantined, ElementsAre(liar));
      EXPECT_THAT(verdicts(run), Contains("fp8_numerics"));
      EXPECT_NEAR(run.damage, 0, 5);
    }
  }
}

// Nor does a trainer whose losses bear nobody out: no difference again and again is not possible.
TEST(LiarTest, NoDifferenceAgainAndAgainIsNamedBesideAnHonestOne) {
  for (const char* liar : {"v1:1", "v2:2"}) {
    const SimulatedRun run = played({"", no_difference(), {liar}, {"v1:1", "v2:2"}}, Truth());
    EXPECT_THAT(run.state.trust.quarantined, ElementsAre(liar));
    EXPECT_FALSE(run.state.watch.instrument.broken) << "the other goes on";
    EXPECT_THAT(run.directives(""), IsEmpty());
  }
}

// One answer is enough to look: with few windows there may be no second one.
TEST(LiarTest, NoDifferenceAtAllIsMeasuredAgainAtOnce) {
  for (const int64_t from : {300, 420, 540, 660, 780}) {
    Truth truth;
    truth.verifiers = {"v1:1", "v2:2"};
    truth.trainer_replays = true;
    truth.replays_per_step_percent = 100;
    SimulatedRun run(truth, scenario_policy());
    int64_t lies = 0;
    run.lie = [&](ReplayFinished& answer) {
      if (run.step < from || answer.verifier != "v2:2" || !in_bf16(answer)) return;
      lies += answer.purpose == "shadow" ? 1 : 0;
      no_difference()(answer);
    };
    run.start();
    while (run.state.trust.quarantined.empty() && run.step < 1000) run.train_until(run.step + 1);
    EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v2:2"));
    EXPECT_EQ(lies, 1) << from;
  }
}

// A trainer that only confirms is the third source of two, and the second of one.
TEST(LiarTest, ATrainerThatConfirmsSaysWhichOfTwoIsWrong) {
  for (const double percent : {-1.4, -0.5, 0.7}) {
    Truth truth;
    truth.trainer_confirms = true;
    const SimulatedRun run =
        played({"", off_by(percent), {"v2:2"}, {"v1:1", "v2:2"}}, std::move(truth));
    EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v2:2")) << percent;
    EXPECT_FALSE(run.state.watch.instrument.broken) << percent;
    EXPECT_THAT(run.directives(""), IsEmpty()) << percent;
  }
}

TEST(LiarTest, ATrainerThatConfirmsBearsOutOneThatIsAlone) {
  Truth truth = numerical_fault({kGuilty}, 401, 1001);
  truth.trainer_confirms = true;
  // Reports say nothing of it: the damage shows in the held-out loss alone.
  const Scene scene{
      "", [](ReplayFinished& answer) { answer.run_losses = answer.losses; }, {"v1:1"}, {"v1:1"}};
  const SimulatedRun run = played(scene, truth);
  EXPECT_THAT(verdicts(run), Contains("fp8_numerics"));
  EXPECT_NEAR(run.damage, 0, 5);
  truth.trainer_confirms = false;
  EXPECT_THAT(verdicts(played(scene, truth)), Not(Contains("fp8_numerics"))) << "what it is for";
}

TEST(LiarTest, ATrainerThatConfirmsIsSeldomStopped) {
  Truth truth;
  truth.trainer_confirms = true;
  const SimulatedRun run = played({"", [](ReplayFinished&) {}, {}, {"v1:1"}}, std::move(truth));
  const int64_t on_trainer = std::ranges::count_if(run.effects, [](const Effect& effect) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    return order != nullptr && order->on_trainer;
  });
  EXPECT_GE(on_trainer, 1) << "of the verifier's first window";
  EXPECT_LE(on_trainer, 4) << "of 50 windows";
}

// A verifier that is alone and honest suffices to find faults.
TEST(LiarTest, OneThatIsAloneAndHonestIsBorneOut) {
  for (const bool trainer : {false, true}) {
    Scene scene{"", [](ReplayFinished&) {}, {}, {"v1:1"}, trainer};
    const SimulatedRun run = played(scene, numerical_fault({kGuilty}, 401, 1001));
    EXPECT_THAT(verdicts(run), Contains("fp8_numerics")) << trainer;
    EXPECT_NEAR(run.damage, 0, 5) << trainer;
  }
}

TEST(LiarTest, AGenericSpikeThatOneVerifierHidesIsNotBlamedOnFp8) {
  Scene scene{"", nullptr, {"v1:1"}, kThree};
  scene.lie = [](ReplayFinished& answer) {
    if (!in_bf16(answer)) return;
    for (size_t i = 0; i < answer.losses.size(); ++i) {
      if (answer.steps[i] == 333) answer.losses[i] -= 3;
    }
    answer.end_hash += "calm";
  };
  const SimulatedRun run = played(scene, spike(333, 3.0));
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_THAT(verdicts(run), Not(Contains("fp8_numerics")));
}

// What honest verifiers cost: nobody is named, and few windows are measured twice.
TEST(LiarTest, HonestVerifiersAreCheckedNowAndThen) {
  for (const auto& verifiers : {std::vector<std::string>{"v1:1"}, {"v1:1", "v2:2"}, kThree}) {
    Scene scene{"", [](ReplayFinished&) {}, {}, verifiers, true};
    const SimulatedRun run = played(scene, Truth());
    EXPECT_THAT(run.decisions("instrument"), IsEmpty());
    EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
    const int64_t twice = std::ranges::count_if(run.effects, [](const Effect& effect) {
      const auto* order = std::get_if<OrderReplay>(&effect);
      return order != nullptr && order->purpose == "instrument" && order->arm == "bf16";
    });
    EXPECT_GE(twice, 2);
    EXPECT_LE(twice, 12) << "of 50 windows";
  }
}

// Far from what may be, before the detector knows its own scale: such answers would teach it one
// that covers for them.
TEST(LiarTest, FP8BetterByMoreThanTheCeilingIsCheckedFromTheStart) {
  const SimulatedRun run = played({"", off_by(3), {"v2:2"}, kThree, false, 60}, Truth());
  const std::vector<RecordDecision> named = run.decisions("action");
  ASSERT_FALSE(named.empty());
  EXPECT_LE(named.front().step, 120) << "its first lie is of steps 60–80 or 80–100";
}

// Second answers come late, so that many windows wait that it measured when it is named.
TEST(LiarTest, WindowsThatANamedLiarMeasuredAreMeasuredAgain) {
  Truth truth;
  truth.verifiers = kThree;
  truth.replays_per_step_percent = 100;
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (answer.verifier == "v2:2") off_by(-0.5)(answer);
  };
  std::vector<Event> late;
  run.filter = [&](const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    const bool held = run.step < 200 && answer != nullptr && answer->purpose == "instrument";
    if (held) late.push_back(event);
    return !held;
  };
  run.start();
  run.train_until(200);
  ASSERT_GE(std::ssize(late), 3);
  for (const Event& event : late) run.feed(event);
  run.train_until(400);
  run.drain();
  EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v2:2"));
  EXPECT_EQ(std::ssize(run.decisions("instrument")), 1);
  EXPECT_FALSE(run.state.watch.instrument.broken);
  EXPECT_GE(run.closed("quiet"), 10) << "of 20 windows";
}

// Every answer of triage by one verifier would be that verifier's word.
TEST(LiarTest, NudgedReplaysAreSpreadOverVerifiers) {
  Scene scene{"", [](ReplayFinished&) {}, {}, {"v1:1", "v2:2"}};
  const Policy one_window = with([](Policy& p) { p.detector.windows_between_false_alarms = 1e12; });
  SimulatedRun run = played(scene, numerical_fault({kGuilty}, 401, 1001), one_window);
  std::set<std::string> fp8, bf16;
  std::set<int64_t> nudged_fp8, nudged_bf16;
  for (const Effect& effect : run.effects) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    if (order == nullptr || order->nudge == 0) continue;
    (order->arm == "bf16" ? nudged_bf16 : nudged_fp8).insert(order->replay);
  }
  for (const Event& event : run.events) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    if (answer == nullptr) continue;
    if (nudged_fp8.contains(answer->replay)) fp8.insert(answer->verifier);
    if (nudged_bf16.contains(answer->replay)) bf16.insert(answer->verifier);
  }
  EXPECT_EQ(fp8.size(), 2u);
  EXPECT_EQ(bf16.size(), 2u);
}

// Noise that grows is said, and what it teaches the detector is bounded until two sources agree.
TEST(LiarTest, AScaleThatGrowsIsSaid) {
  Scene scene{"", nullptr, {"v1:1", "v2:2"}, {"v1:1", "v2:2"}, false, 400};
  auto turn = std::make_shared<int>(0);
  scene.lie = [turn](ReplayFinished& answer) {
    if (answer.purpose == "shadow") off_by((*turn)++ % 2 == 0 ? 0.12 : -0.12)(answer);
  };
  Policy policy = scenario_policy();
  const SimulatedRun run = played(scene, Truth(), policy);
  const auto said = run.decisions("instrument");
  EXPECT_FALSE(said.empty());
  EXPECT_THAT(run.directives(""), IsEmpty());
}

// One that says of any rescue that the damage is gone would have an innocent site pinned.
TEST(LiarTest, ARescueThatOneVerifierMakesUpPinsNothing) {
  for (const char* liar : {"v1:1", "v2:2", "v3:3"}) {
    Truth truth = numerical_fault({kGuilty}, 201, 100'000);
    truth.verifiers = {"v1:1", "v2:2", "v3:3"};
    truth.total_steps = 1500;
    SimulatedRun run(truth, with([](Policy& p) { p.attribution.scores = false; }));
    run.lie = [&](ReplayFinished& answer) {
      if (answer.verifier == liar && answer.purpose == "attribution" && answer.run_end_loss_bf16)
        answer.replay_end_loss_bf16 = *answer.run_end_loss_bf16 / 1.04;
    };
    run.start();
    run.train_until(1000);
    for (const RecordDecision& blame : run.decisions("attribution")) {
      for (const std::string& site : blame.sites) EXPECT_EQ(site, kGuilty) << liar;
    }
    EXPECT_LT(run.damage, 1) << liar;
  }
}

}  // namespace
}  // namespace gnomon::decide
