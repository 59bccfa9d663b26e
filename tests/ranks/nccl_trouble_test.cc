// What NCCL finds wrong while ranks work, what hangs in it, and a library that is not there: one
// message, and no rank that stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/ranks/launcher.h"

namespace {

using namespace gnomon::test;

using Variables = std::vector<std::pair<std::string, std::optional<std::string>>>;

EndedProcess run_ranks(const std::string& told, const std::vector<std::string>& arguments = {},
                       const Variables& more = {}) {
  std::vector<std::string> program = {GNOMON_NCCL_IN_TROUBLE};
  program.insert(program.end(), arguments.begin(), arguments.end());
  ChildOptions options{
      .environment = {{"LD_LIBRARY_PATH", GNOMON_STAND_IN_FOLDER}, {"STAND_IN_NCCL", told}}};
  options.environment.insert(options.environment.end(), more.begin(), more.end());
  return run_to_end(as_ranks(Transport::kTcp, 3, program), options);
}

TEST(Nccl, WithoutTroubleRanksFinish) {
  const EndedProcess outcome = run_ranks("");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "finished\n");
}

struct NcclTrouble {
  std::string name, told;
  std::vector<std::string> arguments;
  std::string message;
};

class NcclInTrouble : public testing::TestWithParam<NcclTrouble> {};

TEST_P(NcclInTrouble, EndsAllRanksWithOneMessage) {
  const auto start = std::chrono::steady_clock::now();
  const EndedProcess outcome = run_ranks(GetParam().told, GetParam().arguments);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, testing::ContainsRegex(GetParam().message));
  EXPECT_THAT(outcome.output, testing::HasSubstr("stand-in: aborted"));
  EXPECT_THAT(outcome.output, testing::Not(testing::HasSubstr("finished")));
  const size_t said = outcome.output.find("the job ends");
  ASSERT_NE(said, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("the job ends", said + 1), std::string::npos) << outcome.output;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

const std::string kFailed =
    "remote process exited or there was a network error .stand-in: as it was told to.";
const std::string kWaited = "waited [0-9.]+ s for the test's bytes over NCCL, longer than allowed";

INSTANTIATE_TEST_SUITE_P(
    Kinds, NcclInTrouble,
    testing::Values(
        NcclTrouble{"start_fails", "remote:1:0", {}, "rank 1 of 3: NCCL failed in its start"},
        NcclTrouble{"start_hangs", "hang:1:0", {}, "waited [0-9.]+ s for its start over NCCL"},
        NcclTrouble{"fails",
                    "remote:1:3",
                    {},
                    "rank 1 of 3: NCCL failed in the test's bytes after [0-9.]+ s: " + kFailed},
        NcclTrouble{"fails_on_the_first_rank",
                    "remote:0:2",
                    {},
                    "rank 0 of 3: NCCL failed in the test's bytes after [0-9.]+ s: " + kFailed},
        NcclTrouble{"fails_when_nobody_asks",
                    "idle:2:3",
                    {},
                    "rank 2 of 3: NCCL failed in the time between two exchanges"},
        NcclTrouble{"hangs", "hang:1:2", {}, kWaited},
        NcclTrouble{"does_not_return", "stuck:1:2", {}, kWaited},
        NcclTrouble{"device_hangs", "", {"1"}, "rank 1 of 3: " + kWaited},
        NcclTrouble{"device_hangs_while_looked_at", "", {"1", "2"}, "rank 1 of 3: " + kWaited},
        NcclTrouble{"device_fails_while_looked_at",
                    "",
                    {"1", "3"},
                    "rank 1 of 3: the test's bytes failed on the device: an illegal address"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Nccl, ThatIsTooOldIsRefusedOnEveryRankByVersion) {
  const EndedProcess outcome = run_ranks("", {}, {{"STAND_IN_NCCL_VERSION", "21703"}});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output,
              testing::HasSubstr("rank 2: NCCL has version 21703, 21800 or later is needed"));
}

}  // namespace
