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
#include <chrono>
#include <string>
#include <thread>

#include "base/file_access.h"
#include "storage/ledger_connection.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUnknown = "unknown";
// How long a program that has a lock on the ledger, but not its name, may keep a start waiting.
constexpr std::chrono::seconds kCopyTime(3);
constexpr std::chrono::milliseconds kCopyLook(50);

// True when `path` still names the file that is open: whoever removed it held the lock then.
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

// True when flock() and POSIX locks know nothing of each other, as on the systems of a machine's
// own disks. Others (NFS, SMB, 9p, Lustre) make a POSIX lock of all the file out of flock(), which
// would be in the way of SQLite's.
bool has_separate_locks(const FileDescriptor& file) {
  constexpr uint32_t kXfs = 0x58465342;
  constexpr uint32_t kZfs = 0x2fc12fc1;
  struct statfs system {};
  if (::fstatfs(file.get(), &system) != 0) return false;
  const auto type = static_cast<uint32_t>(system.f_type);
  return type == EXT4_SUPER_MAGIC || type == BTRFS_SUPER_MAGIC || type == TMPFS_MAGIC ||
         type == OVERLAYFS_SUPER_MAGIC || type == F2FS_SUPER_MAGIC || type == kXfs || type == kZfs;
}

// Opens a file that is there, or makes it (`made`): never what a link leads to, which whoever may
// write the folder chooses.
FileDescriptor open_lock(const fs::path& path, bool& made) {
  while (true) {
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    made = fd >= 0;
    if (!made && errno == EEXIST) fd = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) return FileDescriptor(fd);
    if (errno == ELOOP) {
      throw LedgerError(fmt::format("{} is a link; a file is accepted, or none", path.string()),
                        SQLITE_CANTOPEN);
    }
    if (errno != ENOENT || !fs::exists(path.parent_path())) {
      throw SystemError("open", path.string(), errno);
    }
  }
}

[[noreturn]] void refuse_in_use(const fs::path& ledger, const std::string& holder) {
  throw LedgerError(
      holder == kUnknown
          ? fmt::format("somebody has a lock on the ledger {}: another gnomond, or a program that "
                        "copies it (flock)",
                        ledger.string())
          : fmt::format("the ledger {} is in use by another gnomond (process {}); one ledger has "
                        "one daemon",
                        ledger.string(), holder),
      SQLITE_BUSY);
}

std::string noted_holder(const FileDescriptor& lock) {
  char holder[32] = {};
  const ssize_t size = ::pread(lock.get(), holder, sizeof holder - 1, 0);
  return size > 0 ? holder : kUnknown;
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
  return found && shared.l_pid > 0 ? std::to_string(shared.l_pid) : kUnknown;
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

void check_ledger_location(const fs::path& ledger) {
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
  try {
    hold_name();
    hold_file();
  } catch (...) {
    forget();
    throw;
  }
  note_holder();
}

void LedgerLock::hold_name() {
  do {
    lock_ = open_lock(path_, made_);
    if (lock_now(lock_, path_)) continue;
    made_ = false;  // whoever was faster has it
    refuse_in_use(ledger_, noted_holder(lock_));
  } while (!still_there(lock_, path_));
  // What root makes must not keep the user of the service out; where the system does not let it be
  // given away, it is root's.
  if (!made_ || ::geteuid() != 0) return;
  const Ownership whose = ownership_for(ledger_);
  [[maybe_unused]] const bool given = ::fchown(lock_.get(), whose.owner, whose.group) == 0 &&
                                      ::fchmod(lock_.get(), whose.mode) == 0;
}

void LedgerLock::hold_file() {
  if (!is_file_at(ledger_)) return;  // what else it may be is refused when it is looked at
  file_ = FileDescriptor::open(ledger_, O_RDONLY);
  if (!has_separate_locks(file_)) return;
  for (auto waited = std::chrono::milliseconds(0); waited < kCopyTime; waited += kCopyLook) {
    if (lock_now(file_, ledger_)) return;
    std::this_thread::sleep_for(kCopyLook);
  }
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
  if (made_) fs::remove(path_, ignored);
}

}  // namespace gnomon
