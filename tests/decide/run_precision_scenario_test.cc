// Scenarios of moments and communication in low precision: blamed as themselves, pinned by one more
// rule, and given back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "controller/decide/plans.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const RunPrecision kLow = {"fp8", "fp8", "e5m2", "e4m3"};

// The plans that the core told the trainer to take, in order.
std::vector<PrecisionPlan> plans_of(const SimulatedRun& run) {
  std::vector<PrecisionPlan> plans;
  for (const Effect& effect : run.effects) {
    const auto* directive = std::get_if<IssueDirective>(&effect);
    if (directive != nullptr && !directive->plan.empty())
      plans.push_back(PrecisionPlan::parse(directive->plan));
  }
  return plans;
}

// Told where `site` alone spoils the run while it is in low precision; `pinned` is what is then
// left of the run's precision, and `words` what people read.
void expect_blamed_and_given_back(const SimulatedRun& run, const std::string& site,
                                  const RunPrecision& pinned, const std::string& words,
                                  int64_t replays_max) {
  const std::vector<RecordDecision> blame = run.decisions("attribution");
  ASSERT_THAT(blame, SizeIs(1));
  EXPECT_THAT(blame[0].sites, ElementsAre(site));
  EXPECT_THAT(blame[0].sentence, HasSubstr("Blamed: " + words + ". With it in full precision"));
  EXPECT_LE(boost::json::parse(blame[0].evidence).at("replays").as_int64(), replays_max);
  ASSERT_THAT(run.decisions("action"), SizeIs(1));
  EXPECT_EQ(run.decisions("action")[0].action, "pin");
  EXPECT_THAT(run.decisions("action")[0].sentence, HasSubstr(words + " in full precision"));
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
  const std::vector<PrecisionPlan> plans = plans_of(run);
  ASSERT_THAT(plans, SizeIs(2));  // the pin and the way back
  EXPECT_EQ(plans[0].of_run(), pinned);
  EXPECT_EQ(plans[1].of_run(), kLow);
  for (const PrecisionPlan& plan : plans) EXPECT_TRUE(plan.resolve(kGuilty, 4).any_fp8());
  ASSERT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_THAT(run.decisions("probe")[0].sentence,
              HasSubstr("the run with 1 site in full precision"));
}

TEST(RunPrecisionScenarioTest, SpoiltSecondMomentsAreNamedPinnedAndReturned) {
  RunPrecision pinned = kLow;
  pinned.second_moment = "fp32";
  expect_blamed_and_given_back(run_scenario("SecondMoments"), "optimizer.second_moment", pinned,
                               "FP8 second moments (optimizer.second_moment)", 5);
}

TEST(RunPrecisionScenarioTest, AWireThatSpoilsGradientsIsNamedPinnedAndReturned) {
  RunPrecision pinned = kLow;
  pinned.gradients = "full";
  expect_blamed_and_given_back(run_scenario("GradientsOnTheWire"), "communication.gradients",
                               pinned, "gradients sent as E5M2 (communication.gradients)", 9);
}

// The foremost site of the analysis is asked before them: blaming it costs no replay more.
TEST(RunPrecisionScenarioTest, ASiteBesideThemIsBlamedAlone) {
  const SimulatedRun run = run_scenario("SiteBesideFp8Moments");
  ASSERT_THAT(run.decisions("attribution"), SizeIs(1));
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  const auto replays = [](const SimulatedRun& of) {
    return boost::json::parse(of.decisions("attribution")[0].evidence).at("replays").as_int64();
  };
  EXPECT_LE(replays(run), replays(run_scenario("FaultPinReturn")));
  EXPECT_EQ(plans_of(run).front().of_run(), kLow);
  EXPECT_FALSE(plans_of(run).front().resolve(kGuilty, 4).any_fp8());
}

// What runs in FP8 is not the GEMMs alone: BF16 GEMMs over FP8 moments are watched as well.
TEST(RunPrecisionScenarioTest, APlanIsInBf16WhereMomentsAndCommunicationAreFullToo) {
  const SimulatedRun run = run_scenario("SecondMoments");
  const RunFacts& facts = run.state.run;
  const PrecisionPlan moments = PrecisionPlan::bf16().with_run({.second_moment = "fp8"});
  EXPECT_THAT(fp8_sites(facts, moments.to_toml()), ElementsAre("optimizer.second_moment"));
  EXPECT_THAT(fp8_sites(facts, PrecisionPlan::bf16().to_toml()), ::testing::IsEmpty());
  EXPECT_EQ(
      PrecisionPlan::parse(rescue_plan(moments.to_toml(), {"optimizer.second_moment"}, 9)).of_run(),
      RunPrecision());
}

}  // namespace
}  // namespace gnomon::decide
