// A library that is loaded before the C library (LD_PRELOAD) and notes, in a journal, everything
// that a process does to its files: what is written, truncated, renamed and removed, and what is
// synced. Behind a chosen number of records it kills the process, as a power cut does. From the
// journal power_disk.cc makes what a disk may have then. Nothing is really synced.
//
// Not seen: writes through mmap (SQLite's -shm is written so, and need not outlive a cut; Gnomon
// maps files for reading alone) and copies inside the kernel (sendfile). That all else is seen is
// checked with each cut: the journal, with nothing lost, must lead to what is there. All watched
// paths are on one file system.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/robustness/power_journal.h"

namespace {

using gnomon::robustness::PowerEvent;
using gnomon::robustness::PowerRecord;

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Keeps errno as it was.
class KeepError {
 public:
  KeepError() : error_(errno) {}
  ~KeepError() { errno = error_; }

 private:
  int error_;
};

class Journal {
 public:
  static Journal& get() {
    static Journal* const journal = new Journal;  // never destroyed: others end later
    return *journal;
  }
  bool on() const { return file_ >= 0; }
  bool lies() const { return lies_; }
  std::recursive_mutex& mutex() { return mutex_; }

  bool watches(const std::string& path) const {
    if (path.ends_with("-shm")) return false;
    for (const std::string& prefix : prefixes_) {
      if (path.starts_with(prefix)) return true;
    }
    return false;
  }
  // A folder that has watched paths in it.
  bool watches_folder(const std::string& path) const {
    if (watches(path)) return true;
    for (const std::string& prefix : prefixes_) {
      if (std::filesystem::path(prefix).parent_path() == path) return true;
    }
    return false;
  }

  void add(PowerRecord record, const std::string& first = {}, const std::string& second = {},
           const void* data = nullptr) {
    record.first_bytes = static_cast<uint32_t>(first.size());
    record.second_bytes = static_cast<uint32_t>(second.size());
    const auto part = [](const void* bytes, size_t size) {
      return iovec{const_cast<void*>(bytes), size};
    };
    const iovec parts[] = {part(&record, sizeof record), part(first.data(), first.size()),
                           part(second.data(), second.size()), part(data, record.data_bytes)};
    const size_t whole = sizeof record + first.size() + second.size() + record.data_bytes;
    if (::syscall(SYS_writev, file_, parts, 4) != static_cast<ssize_t>(whole)) ::abort();
    if (cut_after_ > 0 && ++records_ >= cut_after_) {
      ::kill(::getpid(), SIGKILL);
      while (true) ::pause();
    }
  }

  // True when this open file is watched; told to the journal when it is met for the first time.
  bool knows(int file, struct stat& status) {
    if (!on() || ::fstat(file, &status) != 0) return false;
    const bool folder = S_ISDIR(status.st_mode);
    if (!folder && !S_ISREG(status.st_mode)) return false;
    if (known_.contains({status.st_dev, status.st_ino})) return true;
    const std::string path = path_of(file);
    if (path.ends_with(" (deleted)")) return false;
    if (!(folder ? watches_folder(path) : watches(path))) return false;
    meet(PowerEvent::kSeen, path, status);
    return true;
  }
  void meet(PowerEvent event, const std::string& path, const struct stat& status) {
    known_.insert({status.st_dev, status.st_ino});
    add({event, 0, 0, 0, status.st_ino, 0, 0}, path);
  }
  // Its number may be given again.
  void forget(const struct stat& status) { known_.erase({status.st_dev, status.st_ino}); }

  static std::string path_of(int file) {
    char path[PATH_MAX];
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
    return size < 0 ? std::string() : std::string(path, static_cast<size_t>(size));
  }
  static std::string absolute(int folder, const char* path) {
    std::filesystem::path whole(path);
    if (whole.is_relative()) {
      whole = (folder == AT_FDCWD ? std::filesystem::current_path()
                                  : std::filesystem::path(path_of(folder))) /
              whole;
    }
    return whole.lexically_normal().string();
  }

 private:
  Journal() {
    const char* paths = std::getenv(gnomon::robustness::kPowerPaths);
    const char* journal = std::getenv(gnomon::robustness::kPowerJournal);
    if (paths == nullptr || journal == nullptr) return;
    for (const char* at = paths; *at != '\0';) {
      const std::string rest(at);
      prefixes_.push_back(rest.substr(0, rest.find(':')));
      at += std::min(prefixes_.back().size() + 1, rest.size());
    }
    const char* cut = std::getenv(gnomon::robustness::kPowerCutAfter);
    cut_after_ = cut == nullptr ? 0 : std::atoll(cut);
    lies_ = std::getenv(gnomon::robustness::kPowerLies) != nullptr;
    file_ = static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, journal, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }

  std::vector<std::string> prefixes_;
  std::recursive_mutex mutex_;
  std::set<std::pair<uint64_t, uint64_t>> known_;  // device and inode, met by the journal
  int64_t records_ = 0;
  int64_t cut_after_ = 0;
  bool lies_ = false;
  int file_ = -1;
};

using Lock = std::lock_guard<std::recursive_mutex>;

void note_open(int folder, const char* name, int flags, bool was_there, int file) {
  Journal& journal = Journal::get();
  if (file < 0 || !journal.on()) return;
  const KeepError keep;
  const std::string path = Journal::absolute(folder, name);
  struct stat status {};
  if (!journal.watches(path) || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (!was_there) {
    journal.meet(PowerEvent::kCreated, path, status);
  } else if (!journal.knows(file, status)) {
    return;
  }
  if (was_there && (flags & O_TRUNC) != 0) {
    journal.add({PowerEvent::kTruncated, 0, 0, 0, status.st_ino, 0, 0});
  }
}

// All ways to open go through here: the lock is held from the look whether the file is there.
int open_at(int folder, const char* name, int flags, mode_t mode) {
  const Lock lock(Journal::get().mutex());
  struct stat status {};
  const int error = errno;
  const bool was_there = ::fstatat(folder, name, &status, 0) == 0;
  errno = error;
  const int file = static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
  note_open(folder, name, flags, was_there, file);
  return file;
}

void note_write(int file, const void* data, ssize_t size, int64_t offset) {
  Journal& journal = Journal::get();
  if (size <= 0) return;
  const KeepError keep;
  struct stat status {};
  if (!journal.knows(file, status)) return;
  journal.add({PowerEvent::kWritten, 0, 0, 0, status.st_ino, static_cast<uint64_t>(offset),
               static_cast<uint64_t>(size)},
              {}, {}, data);
}

// Where a write without an offset went, once it is done.
int64_t place_before(int file, ssize_t size) {
  return size <= 0 ? 0 : ::lseek(file, 0, SEEK_CUR) - size;
}

bool is_file(int file) {
  const KeepError keep;
  struct stat status {};
  return Journal::get().on() && ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

int sync_of(int file) {
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  struct stat status {};
  const bool known = journal.knows(file, status);
  if (known && !journal.lies()) journal.add({PowerEvent::kSynced, 0, 0, 0, status.st_ino, 0, 0});
  return known ? 0 : static_cast<int>(::syscall(SYS_fdatasync, file));
}

int rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  struct stat replaced {};
  const bool replaces = ::fstatat(to_folder, to, &replaced, AT_SYMLINK_NOFOLLOW) == 0;
  const int result =
      static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (result != 0 || !journal.on()) return result;
  const std::string before = Journal::absolute(from_folder, from);
  const std::string after = Journal::absolute(to_folder, to);
  if (!journal.watches(before) && !journal.watches(after)) return result;
  const bool exchanged = (flags & RENAME_EXCHANGE) != 0;
  journal.add({exchanged ? PowerEvent::kExchanged : PowerEvent::kRenamed}, before, after);
  if (replaces && !exchanged && replaced.st_nlink <= 1) journal.forget(replaced);
  return result;
}

int remove_at(int folder, const char* name, int flags) {
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  struct stat status {};
  const int error = errno;
  const bool there = ::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0;
  errno = error;
  const int result = static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
  if (result != 0 || !there || !journal.on()) return result;
  const std::string path = Journal::absolute(folder, name);
  if (!journal.watches(path)) return result;
  const bool is_folder = (flags & AT_REMOVEDIR) != 0;
  journal.add({is_folder ? PowerEvent::kRemovedDir : PowerEvent::kRemoved}, path);
  if (is_folder || status.st_nlink <= 1) journal.forget(status);
  return result;
}

int make_folder(int folder, const char* name, mode_t mode) {
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  const int result = static_cast<int>(::syscall(SYS_mkdirat, folder, name, mode));
  if (result != 0 || !journal.on()) return result;
  const std::string path = Journal::absolute(folder, name);
  struct stat status {};
  if (journal.watches(path) && ::fstatat(folder, name, &status, 0) == 0) {
    journal.meet(PowerEvent::kFolder, path, status);
  }
  return result;
}

mode_t mode_of(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_at(AT_FDCWD, name, flags, mode);
}

int open64(const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_at(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_at(folder, name, flags, mode);
}

int openat64(int folder, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_at(folder, name, flags, mode);
}

// The C library opens by itself here, so what is there is looked at before and after.
FILE* fopen64(const char* name, const char* mode) {
  static auto* const real = next<FILE*(const char*, const char*)>("fopen64");
  const Lock lock(Journal::get().mutex());
  const bool was_there = ::access(name, F_OK) == 0;
  FILE* const file = real(name, mode);
  if (file != nullptr) {
    note_open(AT_FDCWD, name, mode[0] == 'w' ? O_TRUNC : 0, was_there, ::fileno(file));
  }
  return file;
}
FILE* fopen(const char* name, const char* mode) { return fopen64(name, mode); }

ssize_t write(int file, const void* data, size_t size) {
  if (!is_file(file)) return ::syscall(SYS_write, file, data, size);
  const Lock lock(Journal::get().mutex());
  const ssize_t written = ::syscall(SYS_write, file, data, size);
  note_write(file, data, written, place_before(file, written));
  return written;
}

ssize_t writev(int file, const iovec* parts, int count) {
  if (!is_file(file)) return ::syscall(SYS_writev, file, parts, count);
  const Lock lock(Journal::get().mutex());
  const ssize_t written = ::syscall(SYS_writev, file, parts, count);
  int64_t offset = place_before(file, written);
  for (ssize_t left = written; left > 0; ++parts) {
    const ssize_t size = std::min(left, static_cast<ssize_t>(parts->iov_len));
    note_write(file, parts->iov_base, size, offset);
    offset += size;
    left -= size;
  }
  return written;
}

ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
  const Lock lock(Journal::get().mutex());
  const ssize_t written = ::syscall(SYS_pwrite64, file, data, size, at);
  note_write(file, data, written, at);
  return written;
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  return pwrite64(file, data, size, at);
}

int ftruncate64(int file, off64_t size) {
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  struct stat status {};
  const bool known = journal.knows(file, status);
  const int result = static_cast<int>(::syscall(SYS_ftruncate, file, size));
  if (result == 0 && known) {
    journal.add({PowerEvent::kTruncated, 0, 0, 0, status.st_ino, static_cast<uint64_t>(size), 0});
  }
  return result;
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int fsync(int file) { return sync_of(file); }
int fdatasync(int file) { return sync_of(file); }
// It promises nothing that a cut would have to keep.
int sync_file_range(int, off64_t, off64_t, unsigned) { return 0; }

int rename(const char* from, const char* to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return rename_at(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return rename_at(from_folder, from, to_folder, to, flags);
}

int unlink(const char* name) { return remove_at(AT_FDCWD, name, 0); }
int unlinkat(int folder, const char* name, int flags) { return remove_at(folder, name, flags); }
int rmdir(const char* name) { return remove_at(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char* name) {
  struct stat status {};
  if (::lstat(name, &status) != 0) return -1;
  return remove_at(AT_FDCWD, name, S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
}

int link(const char* from, const char* to) {
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  const int result = static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (result != 0 || !journal.on()) return result;
  const std::string target = Journal::absolute(AT_FDCWD, to);
  if (journal.watches(target)) {
    journal.add({PowerEvent::kLinked}, Journal::absolute(AT_FDCWD, from), target);
  }
  return result;
}

int mkdir(const char* name, mode_t mode) { return make_folder(AT_FDCWD, name, mode); }
int mkdirat(int folder, const char* name, mode_t mode) { return make_folder(folder, name, mode); }
char* mkdtemp(char* pattern) {
  static auto* const real = next<char*(char*)>("mkdtemp");
  Journal& journal = Journal::get();
  const Lock lock(journal.mutex());
  char* const made = real(pattern);
  struct stat status {};
  if (made == nullptr || !journal.on() || ::stat(made, &status) != 0) return made;
  const std::string path = Journal::absolute(AT_FDCWD, made);
  if (journal.watches(path)) journal.meet(PowerEvent::kFolder, path, status);
  return made;
}

}  // extern "C"
