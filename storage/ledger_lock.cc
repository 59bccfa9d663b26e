#include "storage/ledger_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/file_access.h"
#include "storage/ledger_connection.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

// Whether `path` still names the file that is open: whoever removed it held the lock then.
bool still_there(const FileDescriptor& lock, const fs::path& path) {
  struct stat open_file {};
  struct stat named {};
  return ::fstat(lock.get(), &open_file) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

// False when another process has it.
bool lock_now(const FileDescriptor& file, const fs::path& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) throw SystemError("lock", path.string(), errno);
  return false;
}

// On these the system makes a POSIX lock of all the file out of flock().
bool is_on_network(const FileDescriptor& file) {
  struct statfs system {};
  if (::fstatfs(file.get(), &system) != 0) return true;
  const auto type = static_cast<uint32_t>(system.f_type);
  return type == NFS_SUPER_MAGIC || type == SMB_SUPER_MAGIC || type == CIFS_SUPER_MAGIC ||
         type == SMB2_SUPER_MAGIC;
}

[[noreturn]] void refuse_in_use(const fs::path& ledger, const std::string& holder) {
  throw LedgerError(
      fmt::format(
          "the ledger {} is in use by another gnomond (process {}); one ledger has one daemon",
          ledger.string(), holder),
      SQLITE_BUSY);
}

std::string noted_holder(const FileDescriptor& lock) {
  char holder[32] = {};
  const ssize_t size = ::pread(lock.get(), holder, sizeof holder - 1, 0);
  return size > 0 ? holder : "unknown";
}

// Who has SQLite's shared lock on the ledger, which is that of each connection with a WAL
// (https://www.sqlite.org/src/file/src/os.h, SHARED_FIRST).
std::string reader_of(const FileDescriptor& ledger) {
  struct flock shared {};
  shared.l_type = F_WRLCK;
  shared.l_whence = SEEK_SET;
  shared.l_start = 0x40000000 + 2;
  shared.l_len = 510;
  const bool found = ::fcntl(ledger.get(), F_GETLK, &shared) == 0 && shared.l_type != F_UNLCK;
  return found && shared.l_pid > 0 ? std::to_string(shared.l_pid) : "unknown";
}

}  // namespace

fs::path resolve_ledger(const fs::path& ledger) {
  if (ledger.empty()) {
    throw LedgerError("the ledger has no name; the name of a file is accepted", SQLITE_CANTOPEN);
  }
  std::error_code unseen;
  if (fs::is_symlink(ledger, unseen) && !fs::exists(ledger, unseen)) {
    if (unseen) {
      throw LedgerError(
          fmt::format("the ledger {} is a link that leads nowhere: {}; the name of a file is "
                      "accepted",
                      ledger.string(), unseen.message()),
          SQLITE_CANTOPEN);
    }
    throw LedgerError(
        fmt::format("the ledger {} is a link to {}, which does not exist: was it moved, or is its "
                    "disk not mounted? For a new ledger remove the link or name the file itself",
                    ledger.string(), fs::read_symlink(ledger).string()),
        SQLITE_CANTOPEN);
  }
  const fs::path absolute = fs::absolute(ledger);
  fs::path real = fs::weakly_canonical(absolute, unseen);
  return unseen ? absolute : real;
}

void check_ledger_place(const fs::path& ledger) {
  const fs::path real = resolve_ledger(ledger);
  if (is_folder_at(real)) {
    throw LedgerError(
        fmt::format("the ledger {} is a folder; the name of a file is accepted", ledger.string()),
        SQLITE_CANTOPEN);
  }
  if (const std::string why = why_not_writable(real.parent_path()); !why.empty()) {
    throw LedgerError(fmt::format("the ledger {} cannot be had: {}", ledger.string(), why),
                      SQLITE_CANTOPEN);
  }
}

LedgerLock::LedgerLock(const fs::path& ledger) : ledger_(ledger), path_(ledger) {
  path_ += ".lock";
  hold_name();
  try {
    hold_file();
  } catch (...) {
    forget();
    throw;
  }
  note_holder();
}

void LedgerLock::hold_name() {
  do {
    was_there_ = fs::exists(path_);
    lock_ = FileDescriptor::open(path_, O_RDWR | O_CREAT);
    if (!lock_now(lock_, path_)) refuse_in_use(ledger_, noted_holder(lock_));
  } while (!still_there(lock_, path_));
  // What root makes must not keep the user of the service out.
  if (!was_there_ && ::geteuid() == 0) give_ownership(lock_, ownership_for(ledger_), path_);
}

void LedgerLock::hold_file() {
  if (!is_file_at(ledger_)) return;  // what else it may be is refused when it is looked at
  file_ = FileDescriptor::open(ledger_, O_RDONLY);
  if (is_on_network(file_) || lock_now(file_, ledger_)) return;
  refuse_in_use(ledger_, reader_of(file_));
}

// Only for the message above, so a full disk does not matter here.
void LedgerLock::note_holder() const {
  const std::string self = fmt::format("{}", ::getpid());
  if (::ftruncate(lock_.get(), 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(lock_.get(), self.data(), self.size(), 0);
}

void LedgerLock::forget() {
  std::error_code ignored;
  if (!was_there_) fs::remove(path_, ignored);
}

}  // namespace gnomon
