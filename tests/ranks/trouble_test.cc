// A rank that dies, hangs or disagrees ends the whole job with a message, and nobody waits for
// ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include "tests/ranks/launcher.h"

namespace {

struct Outcome {
  int status = 0;
  std::string output;
  double seconds = 0;
};

Outcome run_ranks(const std::string& trouble) {
  gnomon::test::set_launcher_environment();
  auto start = std::chrono::steady_clock::now();
  std::string command = std::string(GNOMON_MPIEXEC) + " -n 3 " GNOMON_RANKS_IN_TROUBLE " " +
                        trouble + " 2>&1 </dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), got);
  }
  int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

TEST(Ranks, WithoutTroubleFinish) {
  Outcome outcome = run_ranks("none");
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
  Outcome outcome = run_ranks(GetParam().kind);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, testing::Not(testing::HasSubstr("finished")));
  EXPECT_THAT(outcome.output, testing::ContainsRegex(GetParam().message));
  EXPECT_LT(outcome.seconds, 30) << outcome.output;
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
