// `gnomon replay` on a checkpoint of a small model.
#include <gmock/gmock.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>

#include "base/hash.h"
#include "protocol/precision_plan.h"
#include "tests/cli/program.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;
using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ReplayCommandTest : public ::testing::Test {
 protected:
  ReplayCommandTest() {
    Engine engine(test::small_engine(directory_.path()));
    engine.initialize();
    engine.set_plan(PrecisionPlan::fp8());
    test::train_hashes(engine, 2);
    checkpoint_ = test::write_checkpoint(engine, directory_.path() / "checkpoints");
    hashes_ = test::train_hashes(engine, 2);
    end_ = test::write_checkpoint(engine, directory_.path() / "checkpoints");
  }
  EndedProcess replay(std::vector<std::string> more) {
    more.insert(more.begin(), {"replay", "--checkpoint", checkpoint_.string()});
    return run_gnomon(more);
  }
  boost::json::object replay_json(std::vector<std::string> more) {
    more.push_back("--json");
    const EndedProcess result = replay(std::move(more));
    EXPECT_EQ(result.status, 0) << result.errors;
    return boost::json::parse(result.output).as_object();
  }
  std::string plan_file(const PrecisionPlan& plan) {
    const fs::path path = directory_.path() / "plan.toml";
    std::ofstream(path) << plan.to_toml();
    return path.string();
  }

  test::TemporaryDirectory directory_;
  fs::path checkpoint_, end_;
  std::vector<uint64_t> hashes_;
};

TEST_F(ReplayCommandTest, TheSamePlanGivesTheRunsOwnWeights) {
  const boost::json::object same = replay_json({"--arm", "same", "--steps", "2"});
  const boost::json::array& steps = same.at("steps").as_array();
  ASSERT_THAT(steps, SizeIs(2));
  EXPECT_EQ(steps[1].at("step"), 4);
  EXPECT_EQ(steps[1].at("weights_hash").as_string(), hex64(hashes_[1]));
  const boost::json::object bf16 = replay_json({"--steps", "2"});
  EXPECT_NE(steps[1].at("weights_hash"), bf16.at("steps").at(1).at("weights_hash"));
  const boost::json::object with_end =
      replay_json({"--arm", "same", "--steps", "2", "--end-checkpoint", end_.string()});
  EXPECT_EQ(with_end.at("run_end_loss_bf16"), with_end.at("replay_end_loss_bf16"));
  EXPECT_EQ(with_end.at("steps").at(1).at("weights_hash"), steps[1].at("weights_hash"));
}

TEST_F(ReplayCommandTest, ScoresOfEverySiteThatRunsInFp8TheMostSuspiciousFirst) {
  const boost::json::array scores = replay_json({"--arm", "scores"}).at("scores").as_array();
  ASSERT_THAT(scores, SizeIs(15)) << "two layers of seven, and lm_head";
  const auto leads = [&](const char* score) {
    return std::ranges::all_of(scores, [&](const boost::json::value& each) {
      return each.at(score).as_double() <= scores[0].at(score).as_double();
    });
  };
  EXPECT_TRUE(leads("phi") || leads("psi"));
  const EndedProcess words = replay({"--arm", "scores"});
  EXPECT_THAT(words.output, AllOf(HasSubstr("phi (nats)"), HasSubstr("lm_head"),
                                  HasSubstr("nats per token (the offset)")));
}

TEST_F(ReplayCommandTest, ScoresUnderAnotherPlan) {
  PrecisionPlan one = PrecisionPlan::bf16();
  one.rules = PrecisionPlan::fp8().rules;
  one.rules.front().match = "model.layers.1.mlp.down_proj";
  const boost::json::array scores =
      replay_json({"--arm", "scores", "--plan", plan_file(one)}).at("scores").as_array();
  ASSERT_THAT(scores, SizeIs(1));
  EXPECT_EQ(scores[0].at("site"), "model.layers.1.mlp.down_proj");
  const EndedProcess none = replay({"--arm", "scores", "--plan", plan_file(PrecisionPlan::bf16())});
  EXPECT_EQ(none.status, 0) << none.errors;
  EXPECT_THAT(none.output, HasSubstr("no site of the plan runs in FP8"));
}

TEST_F(ReplayCommandTest, MistakesAreNamed) {
  const auto refused = [&](std::vector<std::string> arguments, const char* what) {
    const EndedProcess result = replay(std::move(arguments));
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.output + result.errors, HasSubstr(what));
  };
  refused({"--arm", "fp4", "--steps", "2"}, "--arm = fp4");
  refused({"--arm", "bf16"}, "only --arm scores needs none");
  refused({"--arm", "plan", "--steps", "2"}, "a plan file, because of --arm plan");
  refused({"--steps", "2", "--plan", plan_file(PrecisionPlan::bf16())}, "no plan file");
  refused({"--steps", "1", "--end-checkpoint", end_.string()}, "the run's checkpoint at step 3");
  refused({"--steps", "2", "--end-checkpoint", "absent"}, "--end-checkpoint");
}

}  // namespace
}  // namespace gnomon::cli
