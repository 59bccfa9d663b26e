// A rank that dies, hangs or disagrees ends the whole job with a message, and nobody waits for
// ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/ranks/launcher.h"

namespace {

using gnomon::test::EndedProcess;

EndedProcess run_ranks(const std::string& trouble) {
  using namespace gnomon::test;
  return run_to_end(as_ranks(3, {GNOMON_RANKS_IN_TROUBLE, trouble}), launcher_options());
}

TEST(Ranks, WithoutTroubleFinish) {
  EndedProcess outcome = run_ranks("none");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  // Before it, the MPI library may have had something to say about the machine.
  EXPECT_THAT(outcome.output, testing::EndsWith("finished\n"));
}

struct Trouble {
  std::string kind;
  std::string message;
};

class RanksInTrouble : public testing::TestWithParam<Trouble> {};

TEST_P(RanksInTrouble, EndTheJobWithAMessage) {
  auto start = std::chrono::steady_clock::now();
  EndedProcess outcome = run_ranks(GetParam().kind);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, testing::Not(testing::HasSubstr("finished")));
  EXPECT_THAT(outcome.output, testing::ContainsRegex(GetParam().message));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Kinds, RanksInTrouble,
                         testing::Values(Trouble{"killed", "signal 9"},
                                         Trouble{"hangs", "waited [0-9.]+ s for"},
                                         Trouble{"leaves", "rank 1 of 3: cannot go on"},
                                         Trouble{"throws", "rank 0 of 3: what it was"},
                                         Trouble{"short", "disagree|another size"},
                                         Trouble{"long", "disagree|another size"}),
                         [](const auto& instance) { return instance.param.kind; });

}  // namespace
