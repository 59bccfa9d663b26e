#include "storage/ledger.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <chrono>
#include <future>
#include <utility>

#include "base/failpoint.h"
#include "base/thread_name.h"
#include "storage/ledger_migrations.h"

namespace gnomon {
namespace {

std::exception_ptr as_ledger_error(const std::string& action, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const SQLite::Exception& sqlite) {
    return std::make_exception_ptr(ledger_error(action, sqlite));
  } catch (...) {
    return std::current_exception();
  }
}

LedgerOptions resolved(LedgerOptions options) {
  options.file = resolve_ledger(options.file);
  return options;
}

// Runs `post` with a completion and waits for it; throws what it reports.
template <typename Post>
void wait_for(Post post) {
  std::promise<void> promise;
  std::future<void> future = promise.get_future();
  bool accepted = post([&promise](std::exception_ptr error) {
    if (error) {
      promise.set_exception(error);
    } else {
      promise.set_value();
    }
  });
  if (!accepted) {
    throw LedgerBusy("the ledger's queue is full");
  }
  future.get();
}

}  // namespace

Ledger::Ledger(LedgerOptions options)
    : options_(resolved(std::move(options))),
      files_(options_.file),
      writer_(options_.file, Connection::Kind::kWriter) {
  migrate_and_check(writer_, options_.file, files_.state() == LedgerFileState::kUnclear);
  file_identity_.emplace(options_.file, files_.file());
  sqlite3_wal_hook(
      writer_.handle(),
      [](void* pages, sqlite3*, const char*, int in_wal) {
        *static_cast<int*>(pages) = in_wal;
        return SQLITE_OK;
      },
      &wal_pages_);
  for (int i = 0; i < options_.readers; ++i) {
    reader_connections_.push_back(
        std::make_unique<Connection>(options_.file, Connection::Kind::kReader));
  }
  for (auto& connection : reader_connections_) {
    reader_threads_.emplace_back([this, &connection] {
      name_thread("ledger-reader");
      run_reader(*connection);
    });
  }
  writer_thread_ = std::thread([this] {
    name_thread("ledger-writer");
    run_writer();
  });
  files_.keep();
}

Ledger::~Ledger() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  writes_ready_.notify_all();
  reads_ready_.notify_all();
  for (std::thread& thread : reader_threads_) {
    thread.join();
  }
  writer_thread_.join();
  reader_connections_.clear();
  const std::optional<LedgerFileIdentity::Finding> found = file_identity_->look();
  if (found && found->ledger_lost) return;
  writer_.database().tryExec("PRAGMA wal_checkpoint(TRUNCATE)");
  // SQLite then removes the WAL by its name, which may be another's.
  writer_.merge_wal_when_closed(!found);
}

std::string Ledger::lost() const {
  const std::optional<LedgerFileIdentity::Finding> found = file_identity_->look();
  return found ? found->what : std::string();
}

bool Ledger::post(Write write, Done done) {
  {
    std::lock_guard lock(mutex_);
    if (closing_ || writes_.size() >= options_.queue_max) {
      return false;
    }
    writes_.push_back({std::move(write), std::move(done), LedgerTransaction(writer_), nullptr});
  }
  writes_ready_.notify_one();
  return true;
}

bool Ledger::post_read(Read read, Done done) {
  return queue_read({std::move(read), std::move(done)});
}

bool Ledger::queue_read(ReadJob job) {
  {
    std::lock_guard lock(mutex_);
    if (closing_ || reads_.size() >= options_.queue_max) {
      return false;
    }
    reads_.push_back(std::move(job));
  }
  reads_ready_.notify_one();
  return true;
}

void Ledger::write(Write write) {
  wait_for([&](Done done) { return post(std::move(write), std::move(done)); });
}

void Ledger::read(Read read) {
  wait_for([&](Done done) { return post_read(std::move(read), std::move(done)); });
}

void Ledger::read_unhurried(Read read) {
  wait_for([&](Done done) { return queue_read({std::move(read), std::move(done), true}); });
}

size_t Ledger::queue_length() const {
  std::lock_guard lock(mutex_);
  return writes_.size();
}

void Ledger::run_writer() {
  std::vector<WriteJob> batch;
  while (true) {
    batch.clear();
    {
      std::unique_lock lock(mutex_);
      writes_ready_.wait(lock, [this] { return closing_ || !writes_.empty(); });
      while (!writes_.empty() && batch.size() < options_.batch_max) {
        batch.push_back(std::move(writes_.front()));
        writes_.pop_front();
      }
    }
    if (batch.empty()) {
      return;  // closing, and everything accepted is done
    }
    run_batch(batch);
    checkpoint_when_due();
  }
}

// Moves what is committed from the WAL into the file, so that the WAL can begin anew. Most times
// that waits for nobody. When readers that overlap each other keep the WAL from ever beginning
// anew, it grows; then the writer waits for them for a moment, seldom. A fault of the disk is none
// here: the WAL keeps what is not in the file, and the next write shows it.
void Ledger::checkpoint_when_due() {
  constexpr int kEveryPages = 3500;  // below what journal_size_limit leaves of the WAL
  constexpr int kPatienceMs = 100;
  constexpr auto kBetweenLongAttempts = std::chrono::seconds(1);
  if (wal_pages_ < pages_at_attempt_) pages_at_attempt_ = 0;  // it has begun anew
  if (wal_pages_ < pages_at_attempt_ + kEveryPages) return;
  if (!lost().empty()) return;
  pages_at_attempt_ = wal_pages_;
  failpoint::reached(failpoint::Point::kWalCheckpoint);
  sqlite3_wal_checkpoint_v2(writer_.handle(), nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  if (wal_bytes() <= options_.wal_bytes_max || Clock::now() < next_long_attempt_) return;
  sqlite3_busy_timeout(writer_.handle(), kPatienceMs);
  sqlite3_wal_checkpoint_v2(writer_.handle(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr,
                            nullptr);
  sqlite3_busy_timeout(writer_.handle(), Connection::kBusyTimeoutMs);
  next_long_attempt_ = Clock::now() + kBetweenLongAttempts;
}

// SQLite ends the whole transaction by itself on some faults (disk full, I/O error).
bool Ledger::transaction_is_over() {
  return sqlite3_get_autocommit(writer_.database().getHandle()) != 0;
}

// One job inside its savepoint. Its failure undoes the job alone; throws when it ends the group.
void Ledger::run_job(WriteJob& job) {
  writer_.execute("SAVEPOINT job");
  try {
    job.write(job.transaction);
    for (auto& action : std::exchange(job.transaction.end_actions_, {})) action();
    writer_.execute("RELEASE job");
  } catch (...) {
    job.error = as_ledger_error("cannot write to the ledger", std::current_exception());
    undo_job(job);
  }
}

void Ledger::undo_job(WriteJob& job) {
  const int code = writer_.database().tryExec("ROLLBACK TO job; RELEASE job");
  if (code != SQLITE_OK || transaction_is_over()) {
    throw LedgerError("the ledger undid a whole group of writes", SQLITE_FULL);
  }
  for (auto& action : job.transaction.rollback_actions_) {
    action();
  }
  job.transaction.rollback_actions_.clear();
}

void Ledger::run_batch(std::vector<WriteJob>& batch) {
  std::exception_ptr failure;
  Clock::duration commit_time{};
  bool written = false;  // a group that changes nothing proves nothing of the disk
  try {
    if (const std::string why = lost(); !why.empty()) throw LedgerLost(why);
    const int64_t before = sqlite3_total_changes64(writer_.handle());
    writer_.execute("BEGIN IMMEDIATE");
    for (WriteJob& job : batch) {
      run_job(job);
    }
    failpoint::reached(failpoint::Point::kBeforeCommit);
    Clock::time_point start = Clock::now();
    writer_.execute("COMMIT");
    commit_time = Clock::now() - start;
    written = sqlite3_total_changes64(writer_.handle()) > before;
    failpoint::reached(failpoint::Point::kAfterCommit);
  } catch (...) {
    failure = as_ledger_error("cannot commit to the ledger", std::current_exception());
    writer_.database().tryExec("ROLLBACK");
  }
  for (WriteJob& job : batch) {
    if (failure && !job.error) {
      job.error = failure;
    }
    // Those of a job that was undone alone have run.
    auto& actions = failure ? job.transaction.rollback_actions_ : job.transaction.commit_actions_;
    if (failure || !job.error) {
      for (auto& action : actions) {
        action();
      }
    }
  }
  if (!failure && options_.on_commit) {
    options_.on_commit(std::chrono::duration<double>(commit_time).count());
  }
  const std::string trouble = trouble_of(batch, failure != nullptr);
  if (options_.on_outcome && (written || !trouble.empty())) options_.on_outcome(trouble);
  for (WriteJob& job : batch) {
    job.done(job.error);
  }
}

// Why nothing of the group was written, or a part of it for want of room; what is wrong with one
// write alone is its writer's business.
std::string Ledger::trouble_of(const std::vector<WriteJob>& batch, bool whole_group) {
  for (const WriteJob& job : batch) {
    try {
      if (job.error) std::rethrow_exception(job.error);
    } catch (const LedgerLost&) {  // lost() says it
      return {};
    } catch (const LedgerError& error) {
      if (whole_group || error.disk_full()) return error.what();
    } catch (...) {  // a refusal
    }
  }
  return {};
}

void Ledger::run_reader(Connection& connection) {
  constexpr int kInstructionsBetweenLooks = 10'000;
  const auto longest = std::chrono::duration<double>(options_.read_seconds_max);
  while (true) {
    ReadJob job;
    {
      std::unique_lock lock(mutex_);
      reads_ready_.wait(lock, [this] { return closing_ || !reads_.empty(); });
      if (reads_.empty()) {
        return;
      }
      job = std::move(reads_.front());
      reads_.pop_front();
    }
    std::exception_ptr error;
    Clock::time_point end =
        job.unhurried ? Clock::time_point::max()
                      : Clock::now() + std::chrono::duration_cast<Clock::duration>(longest);
    sqlite3_progress_handler(
        connection.handle(), kInstructionsBetweenLooks,
        [](void* at) { return Clock::now() > *static_cast<Clock::time_point*>(at) ? 1 : 0; }, &end);
    try {
      connection.execute("BEGIN");
      job.read(connection);
    } catch (...) {
      error = as_ledger_error("cannot read the ledger", std::current_exception());
    }
    sqlite3_progress_handler(connection.handle(), 0, nullptr, nullptr);
    connection.database().tryExec("COMMIT");
    job.done(error);
  }
}

}  // namespace gnomon
