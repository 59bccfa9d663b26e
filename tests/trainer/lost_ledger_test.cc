// A real gnomond loses its ledger under a running gnomon-trainer, and the run goes on at the new
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>

#include "storage/ledger_connection.h"
#include "storage/ledger_decisions.h"
#include "tests/trainer/daemon_fixture.h"

namespace gnomon {
namespace {

using test::DaemonFixture;
using test::eventually;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
namespace json = boost::json;

class LostLedger : public DaemonFixture {
 protected:
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
      ledger::insert(connection, DirectiveRow{directive, 1, 1});
    }
    daemon_.start_again();
  }
  bool knows_attempt(int64_t number) {
    const json::array steps = daemon_.rows("steps");
    return std::ranges::any_of(steps, [number](const json::value& step) {
      return step.at("attempt").as_int64() == number;
    });
  }
};

TEST_F(LostLedger, ReportsFlowWindowsOpenAndDirectivesAreAppliedAtTheNewOne) {
  daemon_.start();
  auto trainer = start_supervised(config(1000000));
  ASSERT_TRUE(eventually([&] { return !daemon_.rows("windows").empty(); })) << trainer->output();
  ask_in_the_ledger(1);
  ASSERT_TRUE(reaches(1, "applied")) << trainer->output();
  // A second attempt, so that more than one has to be told again.
  trainer->signal(SIGKILL);
  trainer->wait();
  trainer = start_supervised(config(1000000));
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("attempt 2 goes on") != std::string::npos;
  })) << trainer->output();
  ASSERT_TRUE(eventually([&] { return knows_attempt(2); })) << trainer->output();

  daemon_.kill();
  daemon_.lose_ledger();
  daemon_.start_again();
  ASSERT_TRUE(eventually([&] { return !daemon_.rows("steps").empty(); })) << trainer->output();
  ASSERT_TRUE(eventually([&] { return !daemon_.rows("windows").empty(); })) << trainer->output();
  EXPECT_FALSE(knows_attempt(1)) << "what the lost ledger had is not sent again";
  ask_in_the_ledger(2);
  EXPECT_TRUE(reaches(2, "applied")) << trainer->output() << daemon_.log();
  ask_in_the_ledger(1);
  EXPECT_TRUE(reaches(1, "rejected")) << "a number that was used: " << trainer->output();
  trainer->signal(SIGTERM);
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), Not(HasSubstr("refused a report"))) << trainer->output();
  EXPECT_EQ(fs::exists(run_dir() / "spool" / "refused.jsonl"), false);
}

}  // namespace
}  // namespace gnomon
