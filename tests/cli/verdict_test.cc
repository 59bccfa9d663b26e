// The verdict of a run in every place where an operator looks: runs, status, watch, summary,
// report.
#include <gmock/gmock.h>

#include "base/files.h"
#include "tests/cli/program.h"
#include "tests/controller/fake_clients.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class VerdictShown : public ::testing::Test {
 protected:
  VerdictShown() {
    daemon_.start();
    trainer_.emplace(daemon_.url());
    trainer_->begin();
  }
  std::string output_of(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--url", daemon_.url()});
    const test::EndedProcess ended = run_gnomon(arguments);
    EXPECT_EQ(ended.status, 0) << ended.errors;
    return ended.output;
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  test::TemporaryDirectory folder_;
  test::DaemonProcess daemon_{{}, test_policy()};
  std::optional<FakeTrainer> trainer_;
};

TEST_F(VerdictShown, ARunThatNobodyVerifiesIsCalledSoEverywhere) {
  trainer_->train(1, 40);
  EXPECT_THAT(output_of({"runs"}), HasSubstr("unverified"));
  const std::string status = output_of({"status", "test"});
  EXPECT_THAT(status, HasSubstr("unverified since "));
  EXPECT_THAT(status, HasSubstr("40 steps since step 0 without a measured window"));
  EXPECT_THAT(status, HasSubstr("steps since the last verified one: 40"));
  EXPECT_THAT(status, HasSubstr("the last report of a step: "));
  EXPECT_THAT(output_of({"status", "test", "--json"}), HasSubstr("\"verdict\": \"unverified\""));
  for (const char* command : {"runs", "status"}) {
    const test::EndedProcess alone = run_gnomon(
        std::string_view(command) == "runs"
            ? std::vector<std::string>{"runs", "--ledger", daemon_.ledger().string()}
            : std::vector<std::string>{"status", "test", "--ledger", daemon_.ledger().string()});
    EXPECT_THAT(alone.output, HasSubstr("unverified")) << command << alone.errors;
  }
  const test::EndedProcess summary =
      run_gnomon({"summary", "--ledger", daemon_.ledger().string(), "--json"});
  EXPECT_EQ(summary.status, 0) << summary.errors;
  EXPECT_THAT(summary.output, HasSubstr("\"run_verdict\": \"unverified\""));
  EXPECT_THAT(summary.output, HasSubstr("\"measured\": false"));
  const test::EndedProcess report =
      run_gnomon({"report", "--ledger", daemon_.ledger().string(), "--out", file("report.html")});
  EXPECT_EQ(report.status, 0) << report.errors;
  EXPECT_THAT(read_file(file("report.html")), HasSubstr("\"run_verdict\":\"unverified\""));
}

TEST_F(VerdictShown, WatchSaysEachVerdictWhenItChanges) {
  trainer_->train(1, 4);
  test::ChildProcess watch(
      {GNOMON_PROGRAM, "watch", "test", "--interval", "0.05", "--url", daemon_.url()},
      file("output"));
  const auto has_printed = [&](const std::string& words) {
    return test::eventually(
        [&] { return read_file(file("output")).find(words) != std::string::npos; });
  };
  EXPECT_TRUE(has_printed("verdict unverified: No window yet"));
  trainer_->train(5, 10);
  EXPECT_TRUE(has_printed("verdict unverified: Nobody verifies this run"));
  FakeVerifier verifier(daemon_.url());
  while (std::optional<Lease> lease = verifier.lease()) verifier.complete(*lease, 0.001);
  EXPECT_TRUE(has_printed("verdict good: FP8 keeps up")) << read_file(file("output"));
  trainer_->client().checked("POST", trainer_->path("/finished"),
                             to_json(RunFinished{"completed", 10, 3, 1, 1}));
  EXPECT_EQ(watch.wait(), 0);
  EXPECT_THAT(output_of({"runs"}), HasSubstr("ended"));
}

}  // namespace
}  // namespace gnomon::cli
