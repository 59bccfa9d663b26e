// A real gnomond loses its ledger under a running gnomon-trainer, and the run goes on at the new
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>

#include "storage/ledger_connection.h"
#include "storage/ledger_decisions.h"
#include "tests/trainer/real_daemon.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using gnomon::testing::RealDaemon;
using gnomon::testing::TrainerFixture;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
namespace json = boost::json;

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

  RealDaemon daemon_{directory_ / "daemon"};
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
