#include "storage/ledger.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <future>
#include <numeric>
#include <vector>

#include "storage/ledger_audit.h"
#include "storage/ledger_migrations.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void note(LedgerTransaction& transaction, const std::string& what) {
  ledger::insert_audit(transaction.connection(), 0, std::nullopt, what, "");
}

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

TEST_F(LedgerTest, WhatWasWrittenIsThereAfterReopening) {
  {
    Ledger ledger(options());
    ledger.write([](LedgerTransaction& transaction) { note(transaction, "kept"); });
  }
  Ledger ledger(options());
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit WHERE what = 'kept'"), 1);
}

TEST_F(LedgerTest, UsesWalAndFullSynchronous) {
  Ledger ledger(options());
  ledger.write([](LedgerTransaction& transaction) {
    SQLite::Database& database = transaction.connection().database();
    EXPECT_EQ(database.execAndGet("PRAGMA journal_mode").getString(), "wal");
    EXPECT_EQ(database.execAndGet("PRAGMA synchronous").getInt(), 2);
    EXPECT_EQ(database.execAndGet("PRAGMA foreign_keys").getInt(), 1);
  });
}

TEST_F(LedgerTest, RefusesAFileOfANewerVersionAndLeavesItAlone) {
  { Ledger ledger(options()); }
  { SQLite::Database(file_.string(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 99"); }
  std::string message = message_of([&] { Ledger ledger(options()); });
  EXPECT_THAT(message, HasSubstr("version 99"));
  EXPECT_THAT(message, HasSubstr(fmt::format("up to version {}", kLedgerVersion)));
  SQLite::Database database(file_.string());
  EXPECT_EQ(database.execAndGet("PRAGMA user_version").getInt(), 99);
}

TEST_F(LedgerTest, RefusesAnSqliteFileOfAnotherProgram) {
  {
    SQLite::Database(file_.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
        .exec("CREATE TABLE t (x)");
  }
  EXPECT_THAT(message_of([&] { Ledger ledger(options()); }), HasSubstr("another program"));
}

TEST_F(LedgerTest, RefusesAFileThatIsNoDatabase) {
  std::ofstream(file_) << std::string(5000, 'x');
  EXPECT_THAT(message_of([&] { Ledger ledger(options()); }), HasSubstr(file_.string()));
}

TEST_F(LedgerTest, RefusesASecondDaemonOnTheSameLedger) {
  Ledger first(options());
  std::string message = message_of([&] { Ledger second(options()); });
  EXPECT_THAT(message, HasSubstr("in use by another gnomond"));
  EXPECT_THAT(message, HasSubstr(std::to_string(::getpid())));
}

TEST_F(LedgerTest, CompletionsComeInTheOrderOfPostingAndShareACommit) {
  int commits = 0;
  LedgerOptions with_count = options();
  with_count.on_commit = [&](double) { ++commits; };
  std::vector<int> order;
  {
    Ledger ledger(with_count);
    Gate gate(ledger);
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(
          ledger.post([](LedgerTransaction& transaction) { note(transaction, "one of many"); },
                      [&order, i](std::exception_ptr error) {
                        EXPECT_FALSE(error);
                        order.push_back(i);
                      }));
    }
    gate.open();
  }
  std::vector<int> expected(50);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(commits, 2);  // the gate's, and one for the fifty
}

TEST_F(LedgerTest, AWriteIsReportedAsDoneOnlyAfterItsCommit) {
  { Ledger made(options()); }
  SQLite::Database other(file_.string());  // outlives the ledger, whose thread reads through it
  std::promise<int64_t> seen;
  Ledger ledger(options());
  ASSERT_TRUE(ledger.post([](LedgerTransaction& transaction) { note(transaction, "visible"); },
                          [&](std::exception_ptr) {
                            seen.set_value(
                                other.execAndGet("SELECT count(*) FROM audit").getInt64());
                          }));
  EXPECT_EQ(seen.get_future().get(), 1);
}

TEST_F(LedgerTest, AFailingWriteIsUndoneAloneAndTheOthersOfItsGroupStay) {
  Ledger ledger(options());
  Gate gate(ledger);
  std::vector<std::string> ends;
  auto end = [&](const char* name) {
    return [&ends, name](std::exception_ptr error) {
      ends.push_back(std::string(name) + (error ? " failed" : " ok"));
    };
  };
  std::vector<std::string> hooks;
  ASSERT_TRUE(ledger.post([](LedgerTransaction& t) { note(t, "before"); }, end("before")));
  ASSERT_TRUE(ledger.post(
      [&](LedgerTransaction& t) {
        t.on_commit([&] { hooks.push_back("commit"); });
        t.on_rollback([&] { hooks.push_back("rollback"); });
        note(t, "undone");
        throw Error("refused");
      },
      end("failing")));
  std::promise<void> last;
  ASSERT_TRUE(ledger.post(
      [&](LedgerTransaction& t) {
        t.on_commit([&] { hooks.push_back("commit of another"); });
        note(t, "after");
      },
      [&](std::exception_ptr error) {
        EXPECT_FALSE(error);
        last.set_value();
      }));
  gate.open();
  last.get_future().wait();
  EXPECT_THAT(ends, ElementsAre("before ok", "failing failed"));
  EXPECT_THAT(hooks, ElementsAre("rollback", "commit of another"));
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit"), 2);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit WHERE what = 'undone'"), 0);
}

TEST_F(LedgerTest, WhatIsLeftForTheEndOfAWriteIsAPartOfIt) {
  Ledger ledger(options());
  std::vector<std::string> order;
  ledger.write([&](LedgerTransaction& t) {
    t.at_end([&] {
      note(t, "end");
      order.emplace_back("end");
    });
    t.on_commit([&] { order.emplace_back("commit"); });
    order.emplace_back("write");
  });
  EXPECT_THAT(order, ElementsAre("write", "end", "commit"));
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit WHERE what = 'end'"), 1);
  const std::string message = message_of([&] {
    ledger.write([&](LedgerTransaction& t) {
      note(t, "undone");
      t.at_end([] { throw Error("no"); });
      t.on_rollback([&] { order.emplace_back("rollback"); });
    });
  });
  EXPECT_EQ(message, "no");
  EXPECT_EQ(order.back(), "rollback");
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit WHERE what = 'undone'"), 0);
}

TEST_F(LedgerTest, AFullQueueRefusesInsteadOfWaiting) {
  LedgerOptions small = options();
  small.queue_max = 3;
  Ledger ledger(small);
  Gate gate(ledger);
  int accepted = 0;
  for (int i = 0; i < 10; ++i) {
    accepted += ledger.post([](LedgerTransaction&) {}, [](std::exception_ptr) {}) ? 1 : 0;
  }
  EXPECT_EQ(accepted, 3);
  EXPECT_EQ(ledger.queue_length(), 3u);
  EXPECT_THROW(ledger.write([](LedgerTransaction&) {}), LedgerBusy);
  gate.open();
}

TEST_F(LedgerTest, AFullDiskRefusesWritesAndRecoversWhenThereIsSpace) {
  std::string outcome;
  LedgerOptions told = options();
  told.on_outcome = [&](const std::string& why) { outcome = why; };
  Ledger ledger(told);
  auto limit_pages = [&](int64_t pages) {
    ledger.write([&](LedgerTransaction& transaction) {
      transaction.connection().database().exec("PRAGMA max_page_count = " + std::to_string(pages));
    });
  };
  limit_pages(1);  // SQLite takes the present size instead
  int64_t acknowledged = 0;
  bool full = false;
  for (int i = 0; i < 1000 && !full; ++i) {
    try {
      ledger.write(
          [&](LedgerTransaction& transaction) { note(transaction, std::string(500, 'x')); });
      ++acknowledged;
    } catch (const LedgerError& error) {
      full = error.disk_full();
    }
  }
  EXPECT_TRUE(full);
  EXPECT_THAT(outcome, ::testing::HasSubstr("full"));
  ledger.write([](LedgerTransaction&) {});
  EXPECT_NE(outcome, "") << "a group that writes nothing says nothing of the disk";
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit"), acknowledged);
  limit_pages(100'000);
  ledger.write([&](LedgerTransaction& transaction) { note(transaction, "space again"); });
  EXPECT_EQ(outcome, "");
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit"), acknowledged + 1);
}

TEST_F(LedgerTest, ReadersCannotWrite) {
  Ledger ledger(options());
  EXPECT_THROW(ledger.read([](Connection& connection) {
    connection.execute("INSERT INTO audit (time, what, detail) VALUES (0, '', '')");
  }),
               LedgerError);
}

TEST_F(LedgerTest, ClosingFinishesWhatWasAcceptedAndEmptiesTheWal) {
  {
    Ledger ledger(options());
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(ledger.post([](LedgerTransaction& t) { note(t, "accepted"); },
                              [](std::exception_ptr) {}));
    }
  }
  std::filesystem::path wal = file_;
  wal += "-wal";
  EXPECT_FALSE(std::filesystem::exists(wal) && std::filesystem::file_size(wal) > 0);
  Ledger ledger(options());
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit"), 20);
}

// A person's VACUUM, say: its header says the same.
TEST_F(LedgerTest, OneThatAnotherProgramMakesShorterIsNotLost) {
  Ledger ledger(options());
  ledger.write([](LedgerTransaction& transaction) {
    for (int i = 0; i < 500; ++i) note(transaction, std::string(1000, 'x'));
    for (int i = 0; i < 500; ++i) {
      transaction.connection().execute(
          "INSERT INTO stream (time, run, type, body) VALUES (0, 1, 'n', ?)",
          std::string(1000, 'x'));
    }
  });
  SQLite::Database other(file_.string(), SQLite::OPEN_READWRITE, 5000);
  other.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  EXPECT_EQ(ledger.lost(), "");
  const auto before = std::filesystem::file_size(file_);
  other.exec("DELETE FROM stream; VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
  EXPECT_LT(std::filesystem::file_size(file_), before);
  EXPECT_EQ(ledger.lost(), "");
  ledger.write([](LedgerTransaction& transaction) { note(transaction, "goes on"); });
}

}  // namespace
}  // namespace gnomon
