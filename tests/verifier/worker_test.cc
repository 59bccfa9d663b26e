// The verifier's loop in this process, against a small server that hands out leases.
#include "verifier/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "base/child_process.h"
#include "base/files.h"
#include "protocol/json.h"
#include "tests/support/temporary_directory.h"
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

WorkerOptions options_of(const std::string& url, std::chrono::milliseconds backoff) {
  WorkerOptions options;
  options.controller.url = url;
  options.name = "v1";
  options.backoff_first = options.backoff_longest = backoff;
  return options;
}

spdlog::logger silent_log() { return {"test", std::make_shared<spdlog::sinks::null_sink_mt>()}; }

// An answer that the controller can never take may not keep a verifier from all other runs.
TEST(WorkerTest, GivesUpAnAnswerThatTheControllerFailsAtAgainAndAgain) {
  test::LeaseServer server;
  server.set_status(200, 500);
  server.queue(lost_checkpoint());
  WorkerOptions options = options_of(server.url(), std::chrono::milliseconds(1));
  options.once = true;
  Shutdown shutdown;
  spdlog::logger log = silent_log();
  Worker worker(options, shutdown, log);
  auto completed = std::async(std::launch::async, [&] { return worker.run(); });
  EXPECT_EQ(completed.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(std::ssize(server.failed()), kServerErrorsMax);
  server.set_status(200, 200);  // one that goes on trying ends, too
  EXPECT_EQ(completed.get(), 0);
}

// A storage that is away for a moment may not fail one replay after the other.
TEST(WorkerTest, WaitsAfterAReplayThatMayWorkLater) {
  test::LeaseServer server;
  server.queue(lost_checkpoint());
  server.queue(lost_checkpoint());
  WorkerOptions options = options_of(server.url(), std::chrono::seconds(60));
  Shutdown shutdown;
  spdlog::logger log = silent_log();
  Worker worker(options, shutdown, log);
  auto completed = std::async(std::launch::async, [&] { return worker.run(); });
  EXPECT_TRUE(eventually([&] { return !server.failed().empty(); }));
  EXPECT_FALSE(eventually([&] { return server.failed().size() > 1; }, std::chrono::seconds(1)));
  shutdown.request();
  worker.wake();
  EXPECT_EQ(completed.get(), 0);
}

// Each lease reads the token's file anew, which is not there while it is replaced.
TEST(WorkerTest, OutlivesATokenThatIsBeingReplaced) {
  TemporaryDirectory folder;
  const std::filesystem::path token = folder.path() / "token";
  write_file_atomically(token, "first\n");
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  std::atomic<int> leased = 0, failed = 0;
  test::HttpTestServer server([&](const test::HttpRequest& request) -> test::HttpReply {
    if (request.target.starts_with("/v1/leases?")) {
      if (leased++ == 0) std::filesystem::remove(token);
      return {200, to_json(lost_checkpoint())};
    }
    if (request.target.ends_with("/fail")) {
      EXPECT_FALSE(from_json<LeaseFailure>(request.body).unsupported);
      ++failed;
    }
    return {200, "{}"};
  });
  WorkerOptions options = options_of(server.url(), std::chrono::milliseconds(1));
  options.controller.token_file = token.string();
  options.once = true;
  Shutdown shutdown;
  spdlog::logger log = silent_log();
  Worker worker(options, shutdown, log);
  auto completed = std::async(std::launch::async, [&] { return worker.run(); });
  EXPECT_TRUE(eventually([&] { return leased > 0 && !std::filesystem::exists(token); }));
  write_file_atomically(token, "second\n");
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  EXPECT_EQ(completed.get(), 0);
  EXPECT_EQ(failed, 1);
}

}  // namespace
}  // namespace gnomon
