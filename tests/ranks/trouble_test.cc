// A rank that dies, hangs or disagrees ends the whole job with a message, and nobody waits for
// ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>

#include "tests/ranks/launcher.h"

namespace {

using namespace gnomon::test;

EndedProcess run_ranks(Transport transport, const std::string& trouble) {
  return run_to_end(as_ranks(transport, 3, {GNOMON_RANKS_IN_TROUBLE, trouble}), launcher_options());
}

class TroubledRanks : public testing::TestWithParam<Transport> {};

TEST_P(TroubledRanks, WithoutTroubleFinish) {
  EndedProcess outcome = run_ranks(GetParam(), "none");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  // Before it, the MPI library may have had something to say about the machine.
  EXPECT_THAT(outcome.output, testing::EndsWith("finished\n"));
}

TEST_P(TroubledRanks, WaitWithoutALimitForABroadcastThatMayBeLong) {
  EndedProcess outcome = run_ranks(GetParam(), "busy");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::EndsWith("awake\n"));
}

INSTANTIATE_TEST_SUITE_P(Transports, TroubledRanks, testing::ValuesIn(transports()),
                         [](const auto& instance) { return transport_name(instance.param); });

struct Trouble {
  std::string kind;
  std::string over_tcp, over_mpi;  // what is said
};

class RanksInTrouble : public testing::TestWithParam<std::tuple<Transport, Trouble>> {};

TEST_P(RanksInTrouble, EndTheJobWithAMessage) {
  const auto& [transport, trouble] = GetParam();
  auto start = std::chrono::steady_clock::now();
  EndedProcess outcome = run_ranks(transport, trouble.kind);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, testing::Not(testing::HasSubstr("finished")));
  EXPECT_THAT(
      outcome.output,
      testing::ContainsRegex(transport == Transport::kTcp ? trouble.over_tcp : trouble.over_mpi));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << outcome.output;
  if (transport != Transport::kTcp) return;
  const size_t said = outcome.output.find("the job ends");
  ASSERT_NE(said, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("the job ends", said + 1), std::string::npos)
      << "more than once: " << outcome.output;
}

const char* const kGone = "rank 0 of 3: rank 1 is gone";

INSTANTIATE_TEST_SUITE_P(
    Kinds, RanksInTrouble,
    testing::Combine(
        testing::ValuesIn(transports()),
        testing::Values(
            Trouble{"killed", kGone, "signal 9"}, Trouble{"orphans", kGone, "signal 9"},
            Trouble{"hangs", "waited [0-9.]+ s for .* with rank 1", "waited [0-9.]+ s for"},
            Trouble{"leaves", "rank 1 of 3: cannot go on", "rank 1 of 3: cannot go on"},
            Trouble{"throws", "rank 0 of 3: what it was", "rank 0 of 3: what it was"},
            Trouble{"other", "is at an? .* where this one is at an? .*: the ranks disagree",
                    "disagree|another size|waited [0-9.]+ s for"},
            Trouble{"short", "from rank [0-2] where .* were expected: the ranks disagree",
                    "disagree|another size"},
            Trouble{"long", "from rank [0-2] where .* were expected: the ranks disagree",
                    "disagree|another size"})),
    [](const auto& instance) {
      return std::get<1>(instance.param).kind + "_" + transport_name(std::get<0>(instance.param));
    });

}  // namespace
