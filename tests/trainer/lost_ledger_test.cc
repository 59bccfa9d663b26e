// A real gnomond loses its ledger under a running gnomon-trainer, and the run goes on at the new
// one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>

#include "protocol/client.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_decisions.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using gnomon::testing::ChildProcess;
using gnomon::testing::TrainerFixture;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
namespace json = boost::json;

// Always on the port it had first.
class Daemon {
 public:
  explicit Daemon(fs::path folder) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
    write_file_atomically(folder_ / "policy.toml", "[window]\nevery = 10\nsteps = 10\n");
  }

  void start() {
    fs::remove(folder_ / "port");
    process_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{GNOMOND, "--ledger", (folder_ / "ledger.sqlite").string(),
                                 "--listen", fmt::format("127.0.0.1:{}", port_), "--port-file",
                                 (folder_ / "port").string(), "--policy",
                                 (folder_ / "policy.toml").string()},
        folder_ / "log");
    ASSERT_TRUE(testing::eventually(
        [this] { return fs::exists(folder_ / "port") || !process_->running(); }));
    ASSERT_TRUE(process_->running()) << process_->output();
    port_ = std::stoi(read_file(folder_ / "port"));
  }
  void kill() { process_.reset(); }
  void lose_ledger() {
    for (const char* suffix : {"", "-wal", "-shm"})
      fs::remove(folder_ / (std::string("ledger.sqlite") + suffix));
  }
  fs::path ledger() const { return folder_ / "ledger.sqlite"; }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::string log() const { return read_file(folder_ / "log"); }
  // Rows of GET /v1/runs/run-1/`what`; none while there is no such run.
  json::array rows(const std::string& what) const {
    const HttpResponse response = HttpClient(url()).request("GET", "/v1/runs/run-1/" + what);
    return response.status == 200 ? json::parse(response.body).as_array() : json::array();
  }

 private:
  fs::path folder_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

class LostLedger : public TrainerFixture {
 protected:
  bool eventually(const std::function<bool()>& condition) {
    return testing::eventually(condition, std::chrono::seconds(30));
  }
  // Puts a directive into the ledger while no daemon has it; it is delivered once one is there.
  void ask_in_the_ledger(int64_t number) {
    Directive directive;
    directive.number = number;
    directive.kind = "checkpoint_now";
    directive.reason = "the test wants it";
    directive.state = "pending";
    daemon_.kill();
    {
      Connection connection(daemon_.ledger(), Connection::Kind::kWriter);
      ledger::insert_directive(connection, 1, directive, 1);
    }
    daemon_.start();
  }
  bool knows_attempt(int64_t number) {
    const json::array steps = daemon_.rows("steps");
    return std::ranges::any_of(steps, [number](const json::value& step) {
      return step.at("attempt").as_int64() == number;
    });
  }
  std::string state_of(int64_t number) {
    for (const json::value& row : daemon_.rows("directives")) {
      if (row.at("number").as_int64() == number) return std::string(row.at("state").as_string());
    }
    return {};
  }
  bool applied(int64_t number) {
    return eventually([&] { return state_of(number) == "applied"; });
  }

  Daemon daemon_{directory_ / "daemon"};
};

TEST_F(LostLedger, ReportsFlowWindowsOpenAndDirectivesAreAppliedAtTheNewOne) {
  daemon_.start();
  auto trainer = start(config(1000000), {"--controller", daemon_.url()});
  ASSERT_TRUE(eventually([&] { return !daemon_.rows("windows").empty(); })) << trainer->output();
  ask_in_the_ledger(1);
  ASSERT_TRUE(applied(1)) << trainer->output();
  // A second attempt, so that more than one has to be told again.
  trainer->signal(SIGKILL);
  trainer->wait();
  trainer = start(config(1000000), {"--controller", daemon_.url()});
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("attempt 2 goes on") != std::string::npos;
  })) << trainer->output();
  ASSERT_TRUE(eventually([&] { return knows_attempt(2); })) << trainer->output();

  daemon_.kill();
  daemon_.lose_ledger();
  daemon_.start();
  ASSERT_TRUE(eventually([&] { return !daemon_.rows("steps").empty(); })) << trainer->output();
  ASSERT_TRUE(eventually([&] { return !daemon_.rows("windows").empty(); })) << trainer->output();
  EXPECT_FALSE(knows_attempt(1)) << "what the lost ledger had is not sent again";
  ask_in_the_ledger(2);
  EXPECT_TRUE(applied(2)) << trainer->output() << daemon_.log();
  ask_in_the_ledger(1);
  EXPECT_TRUE(eventually([&] { return state_of(1) == "rejected"; }))
      << "a number that was used: " << trainer->output();
  trainer->signal(SIGTERM);
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), Not(HasSubstr("refused a report"))) << trainer->output();
  EXPECT_EQ(fs::exists(run_dir() / "spool" / "refused.jsonl"), false);
}

}  // namespace
}  // namespace gnomon
