// Checks whether a ledger's pages are what they should be: all of them at once for people, and bit
// by bit beside a running daemon.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "storage/ledger_audit.h"
#include "storage/ledger_connection.h"

namespace gnomon {

struct LedgerHealth {
  int64_t bytes = 0;                  // of the file
  int version = 0;                    // of the schema
  std::vector<std::string> problems;  // sentences; at most a few; empty = good
  ledger::AuditVerdict audit;
  bool good() const { return problems.empty(); }
};

// Reads everything: pages and indexes, foreign keys, the tables of its version, the audit log's
// chain. A ledger of an older version is not asked for tables it never had. `end_now` is asked
// often; when it says true, throws LedgerError. Throws LedgerError when the file cannot be read at
// all or is no ledger. A daemon may be writing it; nothing is changed.
LedgerHealth examine_ledger(const std::filesystem::path& ledger,
                            const std::function<bool()>& end_now = {});
// The same of a file that nobody writes and that has no WAL: leaves no -shm file beside it.
LedgerHealth examine_closed_ledger(const std::filesystem::path& file,
                                   const std::function<bool()>& end_now = {});

// Makes statements of a connection end with SQLITE_INTERRUPT once `end_now`, which a thread of its
// own asks several times a second, says true. Both must outlive it. (A progress handler would not
// be called while SQLite looks at the pages of one table.)
class Interrupter {
 public:
  // An empty `end_now` never ends anything.
  Interrupter(SQLite::Database& database, const std::function<bool()>& end_now);
  ~Interrupter();
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;
  std::thread thread_;
};

// Puts the calling thread behind everything else, at the processors and at the disk.
void give_way_to_others();

// Looks at every table once, on a thread and a connection of its own that give way to everything
// else.
class BackgroundCheck {
 public:
  enum class State { kPending, kOk, kFailed };
  struct Hooks {
    // True when the file must be let go for a while: the WAL waits to begin anew. May be empty.
    std::function<bool()> pause = {};
    // Called once on the check's thread, unless it was ended before. May be empty.
    std::function<void(State, const std::string& problem)> on_end = {};
  };

  BackgroundCheck(std::filesystem::path ledger, Hooks hooks);
  // Ends it.
  ~BackgroundCheck();
  BackgroundCheck(const BackgroundCheck&) = delete;
  BackgroundCheck& operator=(const BackgroundCheck&) = delete;

  State state() const;
  std::string problem() const;  // empty unless it failed

 private:
  void run();
  std::string look();  // the problem, or empty; throws when it was ended
  bool wait_a_moment();

  std::filesystem::path ledger_;
  Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable ending_changed_;
  bool ending_ = false;
  State state_ = State::kPending;
  std::string problem_;
  std::thread thread_;
};

}  // namespace gnomon
