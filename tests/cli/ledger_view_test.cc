#include "cli/ledger_view.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/errors.h"
#include "tests/cli/synthetic_ledger.h"

namespace gnomon::cli {
namespace {

using ::testing::HasSubstr;

class LedgerViewTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return directory_.path() / "ledger.sqlite"; }
  TemporaryDirectory directory_;
};

TEST_F(LedgerViewTest, ReadsEveryTableOfARun) {
  write_caught_fault(file());
  RunHistory history = load_history(LedgerView(file()), "");
  EXPECT_EQ(history.run.name, "demo");
  EXPECT_EQ(history.registration.sites.size(), 15u);
  EXPECT_EQ(history.run.final_loss, 2.01);
  EXPECT_EQ(history.attempts.size(), 2u);
  EXPECT_EQ(history.steps.size(), 55u + 80u);
  EXPECT_EQ(history.steps.front().loss, 5.0);
  ASSERT_EQ(history.windows.size(), 8u);
  EXPECT_EQ(history.windows[4].d_percent, 4.5);
  EXPECT_EQ(history.windows[4].end_step(), 50);
  EXPECT_FALSE(history.windows[7].closed_at.has_value());
  EXPECT_FALSE(history.windows[7].gap.has_value());
  ASSERT_EQ(history.decisions.size(), 6u);
  EXPECT_THAT(history.decisions[2].sites, ::testing::ElementsAre(kFaultySite));
  EXPECT_EQ(history.directives.size(), 2u);
  EXPECT_EQ(history.plans.size(), 3u);
  EXPECT_EQ(history.faults.at(0).start_step, 31);
  EXPECT_EQ(history.shadow.size(), 6u * 10u);
  EXPECT_DOUBLE_EQ(history.verify_seconds, 6 * 4.0);
}

TEST_F(LedgerViewTest, ReadsWhatTheDetectorMadeOfAWindow) {
  write_caught_fault(file());
  SQLite::Database database(file(), SQLite::OPEN_READWRITE);
  database.exec(
      "UPDATE windows SET rule = 'ceiling', statistic = 4.5, threshold = 0.5, scale_percent = 0.04"
      " WHERE window = 5");
  const WindowRow row = LedgerView(file()).windows(1).at(4);
  EXPECT_EQ(row.rule, "ceiling");
  EXPECT_EQ(row.statistic, 4.5);
  EXPECT_EQ(row.threshold, 0.5);
  EXPECT_EQ(row.scale_percent, 0.04);
}

TEST_F(LedgerViewTest, SaysWhatToDoWithALedgerFromBeforeAColumn) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("ALTER TABLE windows DROP COLUMN null_percent");
  try {
    LedgerView view(file());
    FAIL() << "it is taken";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("null_percent"));
    EXPECT_THAT(error.what(), HasSubstr("start it there once"));
  }
}

TEST_F(LedgerViewTest, AnAbsentLossIsNan) {
  {
    SyntheticLedger ledger(file());
    ledger.add_run();
    ledger.add_attempt(1, 0, "start");
    ledger.add_steps(1, 1, 2);
    ledger.database().exec("UPDATE steps SET loss = NULL WHERE step = 2");
  }
  std::vector<StepRow> steps = LedgerView(file()).steps(1);
  EXPECT_FALSE(std::isnan(steps.at(0).loss));
  EXPECT_TRUE(std::isnan(steps.at(1).loss));
}

TEST_F(LedgerViewTest, FindsRunsByIdNameAndJobAndTheNewestWithoutAName) {
  {
    SyntheticLedger ledger(file());
    ledger.add_run(1, "demo", "1");
    ledger.add_run(2, "demo", "2");
    ledger.add_run(3, "other", "1");
  }
  LedgerView view(file());
  EXPECT_EQ(view.run_named("").id, 3);
  EXPECT_EQ(view.run_named("demo").id, 2);
  EXPECT_EQ(view.run_named("demo/1").id, 1);
  EXPECT_EQ(view.run_named("run-1").id, 1);
  try {
    view.run_named("nobody");
    FAIL() << "an unknown run was found";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.value(), "nobody");
    EXPECT_THAT(error.accepted(), HasSubstr("demo/2"));
  }
}

TEST_F(LedgerViewTest, ReadsWhileAWriterHasTheFileOpen) {
  SyntheticLedger writer(file());
  writer.add_run();
  writer.add_attempt(1, 0, "start");
  LedgerView view(file());
  EXPECT_EQ(view.steps(1).size(), 0u);
  writer.add_steps(1, 1, 3);
  EXPECT_EQ(view.steps(1).size(), 3u);
}

TEST_F(LedgerViewTest, NeverWrites) {
  write_caught_fault(file());
  auto before = std::filesystem::last_write_time(file());
  auto size = std::filesystem::file_size(file());
  load_history(LedgerView(file()), "");
  EXPECT_EQ(std::filesystem::last_write_time(file()), before);
  EXPECT_EQ(std::filesystem::file_size(file()), size);
}

TEST_F(LedgerViewTest, RefusesWhatIsNoLedger) {
  EXPECT_THROW(LedgerView(directory_.path() / "absent.sqlite"), SystemError);
  std::ofstream(file()) << std::string(5000, 'x');
  EXPECT_THROW(LedgerView{file()}, FormatError);
  std::filesystem::path other = directory_.path() / "other.sqlite";
  SQLite::Database(other, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("CREATE TABLE runs (id INTEGER)");
  EXPECT_THROW(LedgerView{other}, FormatError);
}

TEST_F(LedgerViewTest, RefusesALedgerOfANewerVersion) {
  const int newer = LedgerView::kLedgerVersion + 1;
  {
    SyntheticLedger ledger(file());
    ledger.database().exec(fmt::format("PRAGMA user_version = {}", newer));
  }
  try {
    LedgerView view(file());
    FAIL() << "a newer ledger was opened";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("ledger version {}", newer)));
  }
}

}  // namespace
}  // namespace gnomon::cli
