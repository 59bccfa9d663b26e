// The ledger: the SQLite file in which every fact stands before the controller acts on it. One
// writer thread commits in groups: what waits in its queue goes into one transaction, each write in
// a savepoint of its own, and nothing is reported as done before COMMIT has returned. Readers have
// their own connections and threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage/ledger_connection.h"
#include "storage/ledger_file.h"
#include "storage/ledger_file_identity.h"
#include "storage/ledger_lock.h"

namespace gnomon {

// The writer's or the readers' queue is full: try again soon.
class LedgerBusy : public Error {
 public:
  using Error::Error;
};

// What a write sees: the connection, inside its savepoint, and three places to leave work for
// later.
class LedgerTransaction {
 public:
  explicit LedgerTransaction(Connection& connection) : connection_(connection) {}
  Connection& connection() { return connection_; }
  // Called on the writer's thread when the write has returned, inside its savepoint. What it throws
  // undoes the write.
  void at_end(std::function<void()> action) { end_actions_.push_back(std::move(action)); }
  // Called on the writer's thread after COMMIT, before the write is reported as done. Must not
  // throw.
  void on_commit(std::function<void()> action) { commit_actions_.push_back(std::move(action)); }
  // Called on the writer's thread when this write was undone, for whatever reason. Must not throw.
  void on_rollback(std::function<void()> action) { rollback_actions_.push_back(std::move(action)); }

 private:
  friend class Ledger;
  Connection& connection_;
  std::vector<std::function<void()>> end_actions_;
  std::vector<std::function<void()>> commit_actions_;
  std::vector<std::function<void()>> rollback_actions_;
};

struct LedgerOptions {
  std::filesystem::path file;
  size_t queue_max = 1024;  // writes waiting; also reads waiting
  size_t batch_max = 256;   // writes in one commit
  int readers = 2;
  // A read that takes longer is ended with an error: while it lasts, the WAL cannot begin anew.
  double read_seconds_max = 30;
  // Once the WAL is larger, the writer waits a moment for readers so that it can begin anew.
  int64_t wal_bytes_max = int64_t{64} << 20;
  // Called on the writer's thread after each COMMIT with its duration. May be empty.
  std::function<void(double seconds)> on_commit;
  // Called there after each group of writes that changed something, with nothing; and after each of
  // which nothing, or for want of room not all, could be written, with why. May be empty.
  std::function<void(const std::string& why)> on_outcome;
};

// The ledger's lock, and the promise that a start that fails leaves nothing behind: what was made
// since construction is removed again unless keep() was called.
class LedgerFiles {
 public:
  // `ledger` as resolve_ledger() gives it. Makes an empty one where there is none. Throws
  // LedgerError: no such folder, a folder instead of a file, no whole database
  // (check_ledger_files), another program's, a newer version, or in use.
  explicit LedgerFiles(const std::filesystem::path& ledger);
  ~LedgerFiles();
  LedgerFiles(const LedgerFiles&) = delete;
  LedgerFiles& operator=(const LedgerFiles&) = delete;
  void keep(bool kept = true) { kept_ = kept; }
  // Open as long as this is there.
  const FileDescriptor& file() const { return lock_.file(); }
  // What was found; kAbsent: an empty one has been made.
  LedgerFileState state() const { return state_; }
  // True when a WAL that was over has been emptied.
  bool dropped_wal() const { return dropped_wal_; }

 private:
  void remove_what_was_made();

  std::filesystem::path ledger_;
  LedgerLock lock_;
  LedgerFileState state_ = LedgerFileState::kAbsent;
  bool dropped_wal_ = false;
  bool ledger_was_there_ = false;
  bool wal_was_there_ = false;
  bool kept_ = false;
};

class Ledger {
 public:
  using Write = std::function<void(LedgerTransaction&)>;
  using Read = std::function<void(Connection&)>;
  // Null when all went well; else what the closure threw, or a LedgerError when the commit failed.
  using Done = std::function<void(std::exception_ptr)>;

  // Takes the ledger's lock, opens, migrates, checks. Throws LedgerError: the folder is missing,
  // the file is a link to nothing, newer, damaged or foreign, or another daemon has it. Then no
  // file is left that was not there before.
  explicit Ledger(LedgerOptions options);
  // Finishes what was accepted, then checkpoints the WAL. Leaves files alone that are not its own
  // any more (lost()).
  ~Ledger();

  // The destructor removes what was made, a new ledger too: for a start that fails later on.
  void leave_no_trace() { files_.keep(false); }

  // Queues a write. `done` is called on the writer's thread, in the order of posting, after COMMIT
  // or after the failure. False when the queue is full or the ledger is closing: then neither is
  // ever called.
  [[nodiscard]] bool post(Write write, Done done);
  // The same, waiting for the end. Throws what the write threw, LedgerError (LedgerLost), or
  // LedgerBusy.
  void write(Write write);

  // Queues a read on a reader's connection, in a transaction of its own (one consistent snapshot).
  [[nodiscard]] bool post_read(Read read, Done done);
  void read(Read read);
  // The same, however long it takes: for what is read once, at the start.
  void read_unhurried(Read read);

  size_t queue_length() const;
  // Links resolved.
  const std::filesystem::path& file() const { return options_.file; }
  // True when there was none, so that an empty one has been made.
  bool is_new() const { return files_.state() == LedgerFileState::kAbsent; }
  // Sizes of the files, now.
  int64_t bytes() const { return file_bytes(options_.file); }
  int64_t wal_bytes() const { return file_bytes(wal_of(options_.file)); }
  // Why nothing more is written: the files were deleted, replaced or cut off. Empty while all is
  // well. From any thread.
  std::string lost() const;
  // True when the start found a WAL that could not be read, all of which was in the ledger.
  bool dropped_wal() const { return files_.dropped_wal(); }
  // Readers that can should let go of their snapshots, so that it can begin anew.
  bool wal_is_long() const { return wal_bytes() > options_.wal_bytes_max; }

 private:
  struct WriteJob {
    Write write;
    Done done;
    LedgerTransaction transaction;
    std::exception_ptr error;
  };
  struct ReadJob {
    Read read;
    Done done;
    bool unhurried = false;
  };
  using Clock = std::chrono::steady_clock;

  void run_writer();
  void run_batch(std::vector<WriteJob>& batch);
  static std::string trouble_of(const std::vector<WriteJob>& batch, bool whole_group);
  void run_job(WriteJob& job);
  void undo_job(WriteJob& job);
  bool transaction_is_over();
  void checkpoint_when_due();
  bool queue_read(ReadJob job);
  void run_reader(Connection& connection);

  LedgerOptions options_;
  LedgerFiles files_;
  Connection writer_;
  std::optional<LedgerFileIdentity> file_identity_;
  int wal_pages_ = 0;         // at the newest commit
  int pages_at_attempt_ = 0;  // at the newest checkpoint that left some in the WAL
  Clock::time_point next_long_attempt_{};
  std::vector<std::unique_ptr<Connection>> reader_connections_;

  mutable std::mutex mutex_;
  std::condition_variable writes_ready_;
  std::condition_variable reads_ready_;
  std::deque<WriteJob> writes_;
  std::deque<ReadJob> reads_;
  bool closing_ = false;
  std::vector<std::thread> reader_threads_;
  std::thread writer_thread_;
};

}  // namespace gnomon
