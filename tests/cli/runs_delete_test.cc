// `gnomon runs delete` with a real controller.
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

}  // namespace
}  // namespace gnomon::cli
