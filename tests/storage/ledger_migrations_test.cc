// Ledgers of older versions, and what a start that is refused leaves behind.
#include "storage/ledger_migrations.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <set>

#include "base/files.h"
#include "storage/ledger_audit.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kLedgerApplicationId = 0x476e6f6d;

class LedgerMigrationTest : public LedgerTest {
 protected:
  // A ledger as the first version wrote it, with a run, an attempt and a directive in it.
  void write_version_1() {
    SQLite::Database old(file_.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    old.exec("PRAGMA journal_mode=WAL");
    old.exec(read_file(GNOMON_LEDGER_SCHEMA_V1));
    old.exec(fmt::format("PRAGMA application_id={}; PRAGMA user_version=1", kLedgerApplicationId));
    old.exec(
        "INSERT INTO runs (name, job_id, registration, policy, state, registered_at) "
        "VALUES ('old', '1', '{}', '', 'live', 5.0);"
        "INSERT INTO attempts VALUES (1, 1, 0, 'start', 1, 6.0);"
        "INSERT INTO directives (run, number, kind, plan, plan_version, to_step, checkpoint_uri, "
        "reason, state, issued_at) VALUES (1, 1, 'pause', '', 0, 0, '', 'why', 'pending', 7.0)");
  }
  // Every column and index of the file, in words.
  static std::set<std::string> shape(const std::filesystem::path& file) {
    SQLite::Database database(file.string());
    std::set<std::string> lines;
    SQLite::Statement columns(
        database,
        "SELECT t.name, t.strict, t.wr, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk "
        "FROM pragma_table_list t, pragma_table_info(t.name) c WHERE t.name NOT LIKE 'sqlite%'");
    while (columns.executeStep()) {
      std::string line;
      for (int i = 0; i < columns.getColumnCount(); ++i) {
        line += columns.getColumn(i).getString() + " ";
      }
      lines.insert(line);
    }
    SQLite::Statement indexes(
        database,
        "SELECT t.name, i.\"unique\", i.partial, (SELECT group_concat(x.name) FROM "
        "pragma_index_info(i.name) x) FROM pragma_table_list t, pragma_index_list(t.name) i "
        "WHERE t.name NOT LIKE 'sqlite%'");
    while (indexes.executeStep()) {
      std::string line = "index ";
      for (int i = 0; i < indexes.getColumnCount(); ++i) {
        line += indexes.getColumn(i).getString() + " ";
      }
      lines.insert(line);
    }
    SQLite::Statement triggers(database, "SELECT sql FROM sqlite_schema WHERE type = 'trigger'");
    while (triggers.executeStep()) lines.insert(triggers.getColumn(0).getString());
    return lines;
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

TEST_F(LedgerMigrationTest, AFileOfVersion1OpensAsThePresentVersionAndKeepsItsRows) {
  write_version_1();
  Ledger ledger(options());
  EXPECT_EQ(number(ledger, "PRAGMA user_version"), kLedgerVersion);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM runs WHERE name = 'old'"), 1);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM attempts WHERE fingerprint IS NULL"), 1);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM directives WHERE state = 'pending'"), 1);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM notices"), 0);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM overrides"), 0);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM statistics"), 0);
}

TEST_F(LedgerMigrationTest, AFileOfVersion7KeepsWhatLastsAndNobodyWasToldOfIt) {
  { Ledger ledger(options()); }
  const std::set<std::string> present = shape(file_);
  {
    SQLite::Database old(file_.string(), SQLite::OPEN_READWRITE);
    old.exec(
        "ALTER TABLE conditions DROP COLUMN told; DROP TABLE trainers; PRAGMA user_version=7; "
        "INSERT INTO conditions (run, kind, since, alert) VALUES (3, 'paused', 5.5, '{}')");
  }
  Ledger ledger(options());
  EXPECT_EQ(number(ledger, "PRAGMA user_version"), kLedgerVersion);
  EXPECT_EQ(number(ledger,
                   "SELECT count(*) FROM conditions WHERE run = 3 AND kind = 'paused' AND "
                   "since = 5.5 AND alert = '{}' AND told = '[]'"),
            1);
  EXPECT_EQ(shape(file_), present);
}

TEST_F(LedgerMigrationTest, AFileOfVersion5KeepsItsRowsAndGetsAChainAndTotals) {
  { Ledger ledger(options()); }
  const std::set<std::string> present = shape(file_);
  {
    SQLite::Database old(file_.string(), SQLite::OPEN_READWRITE);
    old.exec(
        "DROP INDEX runs_by_state; DROP INDEX faults_by_run; DROP INDEX replays_by_window; "
        "DROP INDEX checkpoints_verified; DROP TABLE step_totals; DROP TABLE audit; "
        "DROP TABLE outbox; DROP TABLE trainers; DROP TABLE conditions; ALTER TABLE "
        "steps DROP COLUMN seq; PRAGMA "
        "user_version=5;"
        "CREATE TABLE audit (id INTEGER PRIMARY KEY, time REAL NOT NULL, run INTEGER, what TEXT "
        "NOT NULL, detail TEXT NOT NULL) STRICT;"
        "INSERT INTO audit (time, run, what, detail) VALUES (1.5, NULL, 'a', 'first'), "
        "(2.5, 7, 'b', 'second'), (3.5, 7, 'c', '');"
        "INSERT INTO steps (run, attempt, step, plan_version, learning_rate, tokens, step_seconds, "
        "weights_hash, reported_at) VALUES (1, 1, 1, 1, 0, 100, 0.5, '', 0), "
        "(1, 1, 2, 1, 0, 100, 0.25, '', 0), (1, 1, 3, 1, 0, 100, 0.3, '', 0), "
        "(1, 1, 4, 1, 0, 10, 1000, '', 0)");
  }
  Ledger ledger(options());
  EXPECT_EQ(number(ledger, "PRAGMA user_version"), kLedgerVersion);
  SQLite::Database after(file_.string(), SQLite::OPEN_READONLY);
  const ledger::AuditVerdict verdict = ledger::verify_audit(after);
  EXPECT_TRUE(verdict.good()) << verdict.problem;
  EXPECT_EQ(verdict.rows, 3);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit WHERE run = 7 AND principal = ''"), 2);
  EXPECT_EQ(number(ledger, "SELECT steps FROM step_totals WHERE seconds_max = 0.5"), 2);
  EXPECT_EQ(number(ledger, "SELECT tokens FROM step_totals WHERE seconds_max > 1e300"), 10);
  EXPECT_EQ(number(ledger, "SELECT sum(steps) FROM step_totals"), 4);
  EXPECT_EQ(shape(file_), present);
}

TEST_F(LedgerMigrationTest, AFileOfTheVersionBeforeKeepsItsRowsAndGetsAnOutbox) {
  { Ledger ledger(options()); }
  const std::set<std::string> present = shape(file_);
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE)
      .exec(
          "DROP TABLE outbox; DROP TABLE conditions; DROP TABLE trainers; PRAGMA user_version=6;"
          "INSERT INTO stream (time, run, type, body) VALUES (1.5, 1, 'run', '{}')");
  Ledger ledger(options());
  EXPECT_EQ(number(ledger, "PRAGMA user_version"), kLedgerVersion);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM stream WHERE time = 1.5"), 1);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM outbox"), 0);
  EXPECT_EQ(shape(file_), present);
}

TEST_F(LedgerMigrationTest, AMigratedFileHasTheVeryColumnsAndIndexesOfANewOne) {
  write_version_1();
  { Ledger ledger(options()); }
  std::filesystem::path fresh = folder_ / "fresh.sqlite";
  LedgerOptions fresh_options = options();
  fresh_options.file = fresh;
  { Ledger ledger(fresh_options); }
  EXPECT_EQ(shape(file_), shape(fresh));
  EXPECT_GT(shape(file_).size(), 100u);
}

TEST_F(LedgerMigrationTest, AStepThatFailsLeavesTheFileAtItsOldVersion) {
  write_version_1();
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE).exec("CREATE TABLE notices (x)");
  EXPECT_THAT(refusal(), HasSubstr("notices"));
  SQLite::Database after(file_.string());
  EXPECT_EQ(after.execAndGet("PRAGMA user_version").getInt(), 1);
  EXPECT_EQ(after
                .execAndGet("SELECT count(*) FROM pragma_table_info('attempts') WHERE name = "
                            "'fingerprint'")
                .getInt(),
            0);
}

TEST_F(LedgerMigrationTest, OpeningTwiceMigratesOnce) {
  write_version_1();
  { Ledger ledger(options()); }
  Ledger again(options());
  EXPECT_EQ(number(again, "SELECT count(*) FROM attempts"), 1);
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
