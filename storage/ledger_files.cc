#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "storage/ledger.h"
#include "storage/ledger_migrations.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

fs::path beside(const fs::path& ledger, const char* suffix) {
  fs::path path = ledger;
  path += suffix;
  return path;
}

void check_place(const fs::path& ledger) {
  fs::path folder = fs::absolute(ledger).parent_path();
  std::error_code unreadable;
  if (!fs::is_directory(folder, unreadable)) {
    throw LedgerError(fmt::format("the ledger {} cannot be made: there is no folder {}",
                                  ledger.string(), folder.string()),
                      SQLITE_CANTOPEN);
  }
  if (fs::is_directory(ledger, unreadable)) {
    throw LedgerError(
        fmt::format("the ledger {} is a folder; the name of a file is accepted", ledger.string()),
        SQLITE_CANTOPEN);
  }
}

// Whether `path` still names the file that is open: whoever removed it held the lock then.
bool still_there(const FileDescriptor& lock, const fs::path& path) {
  struct stat open_file {};
  struct stat named {};
  return ::fstat(lock.get(), &open_file) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

[[noreturn]] void refuse_in_use(const FileDescriptor& lock, const fs::path& ledger) {
  char holder[32] = {};
  ssize_t size = ::pread(lock.get(), holder, sizeof holder - 1, 0);
  throw LedgerError(
      fmt::format(
          "the ledger {} is in use by another gnomond (process {}); one ledger has one daemon",
          ledger.string(), size > 0 ? holder : "unknown"),
      SQLITE_BUSY);
}

}  // namespace

// A separate file, because closing any descriptor of the ledger itself would drop SQLite's own
// POSIX locks.
LedgerLock::LedgerLock(const fs::path& ledger) : path_(beside(ledger, ".lock")) {
  do {
    was_there_ = fs::exists(path_);
    lock_ = FileDescriptor::open(path_, O_RDWR | O_CREAT);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {
        throw SystemError("lock", path_.string(), errno);
      }
      refuse_in_use(lock_, ledger);
    }
  } while (!still_there(lock_, path_));
  std::string self = fmt::format("{}", ::getpid());
  if (::ftruncate(lock_.get(), 0) == 0) {
    // Only for the message above, so a full disk does not matter here.
    [[maybe_unused]] ssize_t written = ::pwrite(lock_.get(), self.data(), self.size(), 0);
  }
}

void LedgerLock::forget() {
  std::error_code ignored;
  if (!was_there_) fs::remove(path_, ignored);
}

LedgerFiles::LedgerFiles(const fs::path& ledger)
    : ledger_(ledger), lock_((check_place(ledger), ledger)) {
  ledger_was_there_ = fs::exists(ledger_);
  wal_was_there_ = fs::exists(wal_of(ledger_));
  try {
    state_ = check_ledger_files(ledger_);
    if (state_ == LedgerFileState::kAbsent) {
      make_ledger(ledger_);
    } else {
      dropped_wal_ = drop_wal_that_is_over(ledger_);
      inspect_ledger(ledger_);
    }
  } catch (...) {
    remove_what_was_made();
    throw;
  }
}

LedgerFiles::~LedgerFiles() {
  if (!kept_) {
    remove_what_was_made();
  }
}

// Only while the lock is held: another daemon's files must not go.
void LedgerFiles::remove_what_was_made() {
  std::error_code ignored;
  if (!ledger_was_there_ && !wal_was_there_) {
    for (const char* suffix : {"", "-wal", "-shm", ".new"}) {
      fs::remove(beside(ledger_, suffix), ignored);
    }
  }
  // Opening makes these; with nothing in them.
  if (ledger_was_there_ && !wal_was_there_ && file_bytes(wal_of(ledger_)) == 0) {
    fs::remove(wal_of(ledger_), ignored);
    fs::remove(beside(ledger_, "-shm"), ignored);
  }
  lock_.forget();
}

}  // namespace gnomon
