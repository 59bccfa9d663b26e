// `gnomon runs delete` and `end` with a real controller.
#include <gmock/gmock.h>

#include "protocol/json.h"
#include "tests/cli/program.h"
#include "tests/controller/registration.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using test::EndedProcess;
using ::testing::HasSubstr;

TEST(RunsDelete, AsksForYesAndDeletesARunThatHasEnded) {
  test::DaemonProcess daemon;
  daemon.start();
  HttpClient client = daemon.client();
  client.checked("POST", "/v1/runs", to_json(small_registration()));
  const auto gnomon = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--url", daemon.url()});
    return run_gnomon(arguments);
  };
  const EndedProcess unsure = gnomon({"runs", "delete", "small"});
  EXPECT_NE(unsure.status, 0);
  EXPECT_THAT(unsure.errors, HasSubstr("everything on record of run-1"));
  const EndedProcess live = gnomon({"runs", "delete", "small", "--yes"});
  EXPECT_NE(live.status, 0);
  EXPECT_THAT(live.errors, HasSubstr("has not ended"));

  client.checked("POST", "/v1/runs/run-1/finished", to_json(RunFinished{"failed", 0, 3, 1, 1}));
  const EndedProcess gone = gnomon({"runs", "delete", "small", "--yes"});
  EXPECT_EQ(gone.status, 0) << gone.errors;
  EXPECT_THAT(gone.output, HasSubstr("run-1 is deleted"));
  EXPECT_EQ(client.request("GET", "/v1/runs/run-1").status, 404);
  EXPECT_EQ(gnomon({"runs"}).status, 0);
}

// That it ends one whose trainer has been silent is seen in tests/controller/run_deletion_test.cc.
TEST(RunsEnd, AsksWhyAndLeavesARunWhoseTrainerHasJustSpoken) {
  test::DaemonProcess daemon;
  daemon.start();
  daemon.client().checked("POST", "/v1/runs", to_json(small_registration()));
  const EndedProcess why = run_gnomon({"runs", "end", "small", "--url", daemon.url()});
  EXPECT_NE(why.status, 0);
  EXPECT_THAT(why.errors, HasSubstr("--reason is required"));
  const EndedProcess early = run_gnomon(
      {"runs", "end", "small", "--reason", "gone", "--owner", "mira", "--url", daemon.url()});
  EXPECT_NE(early.status, 0);
  EXPECT_THAT(early.errors, HasSubstr("has spoken"));
  EXPECT_THAT(early.errors, HasSubstr("override small/1 stop"));
  daemon.client().checked("POST", "/v1/runs/run-1/finished",
                          to_json(RunFinished{"failed", 0, 3, 1, 1}));
  const EndedProcess repeat = run_gnomon(
      {"runs", "end", "small", "--reason", "gone", "--owner", "mira", "--url", daemon.url()});
  EXPECT_EQ(repeat.status, 0) << repeat.errors;
  EXPECT_THAT(repeat.output, HasSubstr("run-1 has failed"));
}

}  // namespace
}  // namespace gnomon::cli
