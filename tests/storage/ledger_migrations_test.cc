// Ledgers of older versions, and what a start that is refused leaves behind.
#include "storage/ledger_migrations.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <set>

#include "base/files.h"
#include "storage/ledger_runs.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LedgerMigrationTest : public LedgerTest {
 protected:
  static int ledger_version_of(SQLite::Database& database) {
    return database.execAndGet("PRAGMA user_version").getInt();
  }
  std::string refusal() {
    try {
      Ledger ledger(options());
    } catch (const LedgerError& error) {
      return error.what();
    }
    return "no LedgerError";
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
};

constexpr Migration kMadeUp[] = {{"ALTER TABLE runs ADD COLUMN colour TEXT"},
                                 {"UPDATE runs SET colour = 'red'"}};

TEST_F(LedgerMigrationTest, EachStepMakesOneVersionAndKeepsTheRows) {
  { Ledger ledger(options()); }
  SQLite::Database database(file_.string(), SQLite::OPEN_READWRITE);
  database.exec(
      "INSERT INTO runs (name, job_id, registration, policy, state, registered_at) "
      "VALUES ('old', '1', '{}', '', 'live', 5.0)");
  migrate(database, 1, kMadeUp);
  EXPECT_EQ(ledger_version_of(database), 3);
  EXPECT_EQ(database.execAndGet("SELECT colour FROM runs WHERE name = 'old'").getString(), "red");
  migrate(database, 3, kMadeUp);
  EXPECT_EQ(ledger_version_of(database), 3) << "there is nothing left to do";
}

TEST_F(LedgerMigrationTest, AColumnThatMayBeNullIsAddedToAnOlderFile) {
  { Ledger ledger(options()); }
  const auto columns = [&] {
    SQLite::Database database(file_.string(), SQLite::OPEN_READONLY);
    SQLite::Statement query(database, "SELECT name, type FROM pragma_table_info('windows')");
    std::map<std::string, std::string> found;
    while (query.executeStep())
      found[query.getColumn(0).getString()] = query.getColumn(1).getString();
    return found;
  };
  const auto drop = [&](const char* column) {
    SQLite::Database(file_.string(), SQLite::OPEN_READWRITE)
        .exec(fmt::format("ALTER TABLE windows DROP COLUMN {}", column));
  };
  const auto whole = columns();
  drop("null_percent");
  ASSERT_NE(columns(), whole);
  { Ledger ledger(options()); }
  EXPECT_EQ(columns(), whole);
  drop("steps");
  EXPECT_THAT(refusal(), HasSubstr("has no column steps of table windows"));
}

// A file of 0.2.0: its steps stay and say nothing of casts and states.
TEST_F(LedgerMigrationTest, StepsFromBeforeCastsWereCountedAreRead) {
  const StepRow step{{1, 1, 1, 2.0, 1.0, 0.1, 8, 0.5, "00", "11", 1e-6, 2e-6, 64, true}, 1, 2.0};
  {
    Ledger ledger(options());
    ledger.write([&](LedgerTransaction& t) { ledger::insert_step(t.connection(), step); });
  }
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE)
      .exec(
          "ALTER TABLE steps DROP COLUMN cast_saturated; ALTER TABLE steps DROP COLUMN "
          "cast_flushed; ALTER TABLE steps DROP COLUMN cast_peak; ALTER TABLE steps DROP COLUMN "
          "state_changed");
  Ledger ledger(options());
  ledger.write([&](LedgerTransaction& t) {
    StepRow next = step;
    next.step = 2;
    ledger::insert_step(t.connection(), next);
  });
  ledger.read([&](Connection& connection) {
    const auto steps = ledger::steps_between(connection, 1, 1, 1, 2);
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_EQ(steps[0].batch_hash, "11");
    EXPECT_FALSE(steps[0].cast_saturated || steps[0].cast_flushed || steps[0].cast_peak);
    EXPECT_FALSE(steps[0].state_changed);
    EXPECT_EQ(steps[1].state_changed, true);
    EXPECT_EQ(steps[1].cast_saturated, 1e-6);
    EXPECT_EQ(steps[1].cast_flushed, 2e-6);
    EXPECT_EQ(steps[1].cast_peak, 64);
  });
}

TEST_F(LedgerMigrationTest, AStepThatFailsLeavesTheFileAtTheVersionBefore) {
  { Ledger ledger(options()); }
  SQLite::Database database(file_.string(), SQLite::OPEN_READWRITE);
  const Migration steps[] = {kMadeUp[0], {"CREATE TABLE added (x); INSERT INTO absent VALUES (1)"}};
  EXPECT_THROW(migrate(database, 1, steps), SQLite::Exception);
  EXPECT_EQ(ledger_version_of(database), 2);
  EXPECT_FALSE(database.tableExists("added"));
}

TEST_F(LedgerMigrationTest, ALedgerFromBeforeTheReleaseIsRefusedWithWhatToDo) {
  { Ledger ledger(options()); }
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version=9");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("has version 9"), HasSubstr("run the gnomond that wrote it, or")));
}

TEST_F(LedgerMigrationTest, ARefusedStartLeavesNothingBehind) {
  file_ = folder_ / "nothing" / "ledger.sqlite";
  EXPECT_THAT(refusal(), HasSubstr("there is no folder " + (folder_ / "nothing").string()));
  EXPECT_THAT(files(), IsEmpty());

  file_ = folder_ / "text";
  std::ofstream(file_) << std::string(5000, 'x');
  EXPECT_THAT(refusal(), HasSubstr("not a database"));
  EXPECT_EQ(files(), std::set<std::string>{"text"});
  EXPECT_EQ(read_file(file_), std::string(5000, 'x'));
}

TEST_F(LedgerMigrationTest, AFolderIsNoLedger) {
  std::filesystem::create_directory(file_);
  EXPECT_THAT(refusal(), HasSubstr("is a folder"));
  EXPECT_EQ(files(), std::set<std::string>{"ledger.sqlite"});
}

TEST_F(LedgerMigrationTest, AnotherProgramsFileIsNotChangedByAByte) {
  {
    SQLite::Database(file_.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
        .exec("CREATE TABLE t (x)");
  }
  std::string before = read_file(file_);
  EXPECT_THAT(refusal(), HasSubstr("another program"));
  EXPECT_EQ(read_file(file_), before);
  EXPECT_EQ(files(), std::set<std::string>{"ledger.sqlite"});
}

TEST_F(LedgerMigrationTest, ARefusedSecondDaemonTakesNothingFromTheFirst) {
  Ledger first(options());
  std::set<std::string> before = files();
  EXPECT_THAT(refusal(), HasSubstr("in use"));
  EXPECT_EQ(files(), before);
  EXPECT_TRUE(before.contains("ledger.sqlite.lock"));
}

TEST_F(LedgerMigrationTest, ALockThatWasLeftIsTakenAndStays) {
  { Ledger ledger(options()); }
  EXPECT_TRUE(files().contains("ledger.sqlite.lock"));
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 99");
  EXPECT_THAT(refusal(), HasSubstr("version 99"));
  EXPECT_TRUE(files().contains("ledger.sqlite.lock"));
}

TEST_F(LedgerMigrationTest, NamesWithSignsOfAnUriAreNames) {
  file_ = folder_ / "a?b#c%20d.sqlite";
  { Ledger ledger(options()); }
  Ledger again(options());
  EXPECT_TRUE(std::filesystem::exists(file_));
}

}  // namespace
}  // namespace gnomon
