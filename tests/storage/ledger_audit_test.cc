// The audit log's chain: what it covers, and that no change to the file goes unseen.
#include "storage/ledger_audit.h"

#include <gmock/gmock.h>

#include "tests/storage/ledger_fixture.h"

namespace gnomon::ledger {
namespace {

using ::testing::HasSubstr;

// Computed by another program from what the header says.
TEST(AuditHashTest, IsWhatTheHeaderSays) {
  const AuditRecord first{1, 1500000000.25, std::nullopt, "policy_changed", "mode = \"é\"\n", ""};
  const std::string hash = audit_hash(audit_root(), first);
  EXPECT_EQ(hash, "a218925c618aa52a32d388702367c3d3c9aadac92d9c3502c2816b656e0905be");
  EXPECT_EQ(audit_hash(hash, {2, -1.0, 3, "override", "pause by ann: the disk is changed", "ann"}),
            "c92ead6af4d4650c9f2c16bc846709814bbd2473bdaae51754ad9c722f17e10f");
}

TEST(AuditHashTest, TextsThatRunIntoEachOtherDiffer) {
  EXPECT_NE(audit_hash(audit_root(), {1, 0, 1, "ab", "c", ""}),
            audit_hash(audit_root(), {1, 0, 1, "a", "bc", ""}));
  EXPECT_NE(audit_hash(audit_root(), {1, 0, 1, "a", "", "b"}),
            audit_hash(audit_root(), {1, 0, 1, "a", "b", ""}));
}

class AuditTest : public LedgerTest {
 protected:
  static constexpr int64_t kRows = 20;

  AuditTest() {
    Ledger ledger(options());
    for (int64_t i = 1; i <= kRows; ++i) {
      ledger.write([i](LedgerTransaction& transaction) {
        const AuditedBy ann(transaction.connection(), "ann");
        insert_audit(transaction.connection(), 0.1 * static_cast<double>(i),
                     i % 2 ? std::optional<int64_t>(i) : std::nullopt, "what",
                     "detail " + std::to_string(i));
      });
    }
  }
  // What somebody does who opens the file by hand and does not mind the triggers.
  void tamper(const std::string& sql) {
    SQLite::Database file(file_.string(), SQLite::OPEN_READWRITE);
    for (const char* trigger :
         {"audit_is_not_changed", "audit_is_not_deleted", "audit_is_appended"}) {
      file.exec(std::string("DROP TRIGGER IF EXISTS ") + trigger);
    }
    file.exec(sql);
  }
  AuditVerdict verdict(const std::optional<NotedHash>& noted = {}) {
    SQLite::Database file(file_.string(), SQLite::OPEN_READONLY);
    return verify_audit(file, noted);
  }
  std::string hash_of(int64_t id) {
    SQLite::Database file(file_.string(), SQLite::OPEN_READONLY);
    return file.execAndGet("SELECT hash FROM audit WHERE id = " + std::to_string(id)).getString();
  }
};

TEST_F(AuditTest, ALogThatNobodyTouchedIsGood) {
  const AuditVerdict good = verdict();
  EXPECT_TRUE(good.good()) << good.problem;
  EXPECT_EQ(good.rows, kRows);
  EXPECT_EQ(good.last_id, kRows);
  EXPECT_EQ(good.head, hash_of(kRows));
}

TEST_F(AuditTest, EachColumnOfEachRowIsCovered) {
  for (const char* change : {"time = time + 1e-9", "run = 99", "run = NULL", "what = 'other'",
                             "detail = 'other'", "principal = ''", "id = id + 1000"}) {
    for (int64_t row : {1, 7, 20}) {
      if (std::string(change) == "run = NULL" && row % 2 == 0) continue;  // it is already
      std::filesystem::path copy = file_;
      copy += ".copy";
      std::filesystem::copy_file(file_, copy);
      tamper(std::string("UPDATE audit SET ") + change + " WHERE id = " + std::to_string(row));
      const AuditVerdict bad = verdict();
      EXPECT_FALSE(bad.good()) << change << " of row " << row;
      EXPECT_GE(bad.first_bad, row) << change;
      EXPECT_LE(bad.first_bad, std::string(change).starts_with("id") ? 1020 : row) << change;
      std::filesystem::rename(copy, file_);
    }
  }
}

TEST_F(AuditTest, ARowThatIsGoneIsMissedAtTheNextOne) {
  tamper("DELETE FROM audit WHERE id = 5");
  EXPECT_EQ(verdict().first_bad, 6);
  EXPECT_THAT(verdict().problem, HasSubstr("row 6 does not fit"));
}

TEST_F(AuditTest, TheFirstRowsCannotGoEither) {
  tamper("DELETE FROM audit WHERE id <= 3");
  EXPECT_EQ(verdict().first_bad, 4);
}

TEST_F(AuditTest, ALogThatWasCutIsSeenByWhoNotedItsHead) {
  const std::string head = hash_of(kRows);
  tamper("DELETE FROM audit WHERE id > 15");
  EXPECT_TRUE(verdict().good()) << "the chain alone cannot tell";
  EXPECT_THAT(verdict(NotedHash{0, head}).problem, HasSubstr("the end of the log is gone"));
  EXPECT_THAT(verdict(NotedHash{kRows, head}).problem, HasSubstr("the end of the log is gone"));
}

TEST_F(AuditTest, ANotedHashInTheMiddleIsFoundAgainAndAForgedChainIsNot) {
  const std::string noted = hash_of(10);
  EXPECT_TRUE(verdict(NotedHash{10, noted}).good());
  EXPECT_TRUE(verdict(NotedHash{0, noted}).good());
  EXPECT_TRUE(verdict(NotedHash{0, audit_root()}).good());
  EXPECT_FALSE(verdict(NotedHash{0, std::string(64, 'f')}).good());
  // Everything from row 10 on written anew, with right hashes.
  tamper("DELETE FROM audit WHERE id >= 10");
  {
    Connection by_hand(file_, Connection::Kind::kWriter);
    for (int i = 10; i <= 20; ++i) insert_audit(by_hand, 1, std::nullopt, "forged", "");
  }
  EXPECT_TRUE(verdict().good());
  const AuditVerdict bad = verdict(NotedHash{10, noted});
  EXPECT_EQ(bad.first_bad, 10);
  EXPECT_THAT(bad.problem, HasSubstr("was written anew"));
}

TEST_F(AuditTest, RowsAreNeitherChangedNorDeletedNorReplaced) {
  Ledger ledger(options());
  for (const char* sql :
       {"UPDATE audit SET detail = '' WHERE id = 3", "DELETE FROM audit WHERE id = 20",
        "INSERT OR REPLACE INTO audit VALUES (3, 0, NULL, '', '', '', '')",
        "INSERT INTO audit VALUES (-7, 0, NULL, '', '', '', '')"}) {
    EXPECT_THROW(ledger.write([&](LedgerTransaction& transaction) {
      transaction.connection().execute(sql);
    }),
                 LedgerError)
        << sql;
  }
  EXPECT_TRUE(verdict().good());
}

TEST_F(AuditTest, AnUndoneWriteLeavesNoHoleInTheChain) {
  Ledger ledger(options());
  EXPECT_THROW(ledger.write([](LedgerTransaction& transaction) {
    insert_audit(transaction.connection(), 1, std::nullopt, "undone", "");
    throw Error("refused");
  }),
               Error);
  ledger.write([](LedgerTransaction& transaction) {
    insert_audit(transaction.connection(), 1, std::nullopt, "kept", "");
  });
  EXPECT_EQ(verdict().rows, kRows + 1);
  EXPECT_TRUE(verdict().good());
}

}  // namespace
}  // namespace gnomon::ledger
