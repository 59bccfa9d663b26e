// An error that one rank alone has inside a step ends the job within seconds, and is said by that
// rank and by those that end with it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>

#include "base/files.h"
#include "tests/ranks/launcher.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace gnomon::test;
using testing::HasSubstr;

struct Failure {
  std::string kind, cause;
};

class Ranks {
 protected:
  // Each rank's standard error in a file of its own.
  EndedProcess run(Transport transport, const std::string& kind, int rank) const {
    const std::string apart = fmt::format(
        "exec \"$@\" 2>{}/errors.${{RANK:-$OMPI_COMM_WORLD_RANK}}", directory_.path().string());
    return run_to_end(as_ranks(transport, kRanks,
                               {"/bin/sh", "-c", apart, "sh", GNOMON_RANKS_FAILING_ENGINE, kind,
                                directory_.path().string(), std::to_string(rank)}),
                      launcher_options());
  }
  std::string errors_of(int rank) const {
    return gnomon::read_file(directory_ / fmt::format("errors.{}", rank));
  }

  static constexpr int kRanks = 3;
  TemporaryDirectory directory_;
};

class FailingRank : public Ranks,
                    public testing::TestWithParam<std::tuple<Transport, int, Failure>> {};
class RankWithoutEngine : public Ranks,
                          public testing::TestWithParam<std::tuple<Transport, int>> {};

TEST_P(FailingRank, EndsTheJobWithItsCauseWithinSeconds) {
  const auto& [transport, rank, trouble] = GetParam();
  const auto start = std::chrono::steady_clock::now();
  const EndedProcess outcome = run(transport, trouble.kind, rank);
  const auto seconds = std::chrono::steady_clock::now() - start;
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("finished")));
  EXPECT_LT(seconds, std::chrono::seconds(20));
  const std::string said = fmt::format("rank {} of {}: ", rank, kRanks);
  EXPECT_THAT(errors_of(rank), testing::AllOf(HasSubstr(said), HasSubstr(trouble.cause)));
  if (transport != Transport::kTcp) return;  // MPI's launcher kills the others
  for (int other = 0; other < kRanks; ++other) {
    EXPECT_THAT(errors_of(other), testing::AllOf(HasSubstr(said), HasSubstr(trouble.cause)))
        << "rank " << other;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FailingRank,
    testing::Combine(testing::ValuesIn(transports()), testing::Values(0, 1, 2),
                     testing::Values(Failure{"throws", "a kernel could not be launched"},
                                     Failure{"error", "the device fell off the bus"},
                                     Failure{"memory", "out of memory"},
                                     Failure{"truncated", "which were there when it was opened"})),
    [](const auto& instance) {
      return std::get<2>(instance.param).kind + "_" + transport_name(std::get<0>(instance.param)) +
             "_" + std::to_string(std::get<1>(instance.param));
    });

// Before the first step the ranks agree on an error: the job ends in order, with rank 0's status.
TEST_P(RankWithoutEngine, SaysWhy) {
  const auto& [transport, rank] = GetParam();
  const EndedProcess outcome = run(transport, "creation", rank);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(errors_of(rank), HasSubstr("no device is left"));
  EXPECT_THAT(errors_of(0), HasSubstr("no device is left"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankWithoutEngine,
                         testing::Combine(testing::ValuesIn(transports()), testing::Values(0, 2)),
                         [](const auto& instance) {
                           return transport_name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

class NoFailingRank : public testing::TestWithParam<Transport> {};

TEST_P(NoFailingRank, Finishes) {
  TemporaryDirectory directory;
  const EndedProcess outcome = run_to_end(
      as_ranks(GetParam(), 3, {GNOMON_RANKS_FAILING_ENGINE, "none", directory.path().string()}),
      launcher_options());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::EndsWith("finished\n"));
}

INSTANTIATE_TEST_SUITE_P(Transports, NoFailingRank, testing::ValuesIn(transports()),
                         [](const auto& instance) { return transport_name(instance.param); });

}  // namespace
