// The verifier's loop in this process, against a small server that hands out leases.
#include "verifier/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <future>

#include "tests/verifier/lease_server.h"

namespace gnomon {
namespace {

Lease lost_checkpoint() {
  Lease lease;
  lease.lease = 4;
  lease.token = 17;
  lease.ttl_seconds = 60;
  lease.task.run = "run-1";
  lease.task.arm = "bf16";
  lease.task.purpose = "shadow";
  lease.task.checkpoint_uri = "/nowhere/checkpoint";
  lease.task.steps = 10;
  return lease;
}

// An answer that the controller can never take may not keep a verifier from all other runs.
TEST(WorkerTest, GivesUpAnAnswerThatTheControllerFailsAtAgainAndAgain) {
  test::LeaseServer server;
  server.set_status(200, 500);
  server.queue(lost_checkpoint());
  WorkerOptions options;
  options.controller.url = server.url();
  options.name = "v1";
  options.once = true;
  options.backoff_first = options.backoff_longest = std::chrono::milliseconds(1);
  Shutdown shutdown;
  spdlog::logger log("test", std::make_shared<spdlog::sinks::null_sink_mt>());
  Worker worker(options, shutdown, log);
  auto completed = std::async(std::launch::async, [&] { return worker.run(); });
  EXPECT_EQ(completed.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(std::ssize(server.failed()), kServerErrorsMax);
  server.set_status(200, 200);  // one that goes on trying ends, too
  EXPECT_EQ(completed.get(), 0);
}

}  // namespace
}  // namespace gnomon
