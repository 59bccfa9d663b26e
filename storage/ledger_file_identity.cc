#include "storage/ledger_file_identity.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errors.h"
#include "storage/ledger_file.h"

namespace gnomon {

namespace fs = std::filesystem;

LedgerLost::LedgerLost(const std::string& message) : LedgerError(message, SQLITE_IOERR) {}

LedgerFileIdentity::LedgerFileIdentity(fs::path ledger, const FileDescriptor& open)
    : ledger_(std::move(ledger)), open_(open) {
  struct stat now {};
  if (::fstat(open_.get(), &now) != 0) throw SystemError("look at", ledger_.string(), errno);
  identity_ = {now.st_dev, now.st_ino};
  bytes_ = now.st_size;
  if (::stat(wal_of(ledger_).c_str(), &now) == 0) wal_identity_ = {now.st_dev, now.st_ino};
}

// What happened to the name `file`; empty when it leads where it did. A name that cannot be looked
// at proves nothing: what is open is written as before.
std::string LedgerFileIdentity::moved(const fs::path& file, const Identity& expected) {
  struct stat now {};
  if (::stat(file.c_str(), &now) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? "was deleted or moved away" : "";
  }
  return Identity{now.st_dev, now.st_ino} == expected ? "" : "was replaced by another file";
}

// SQLite makes it shorter only together with what its header says; while pages wait in the WAL it
// may be shorter than that, but then it did not shrink.
std::string LedgerFileIdentity::cut_off() const {
  const std::lock_guard lock(mutex_);  // or an older size would be compared with a newer one
  struct stat now {};
  if (::fstat(open_.get(), &now) != 0) return "";
  if (now.st_size < bytes_) {
    const int64_t whole = bytes_in_header(open_);
    if (whole == 0 || now.st_size < whole) {
      return fmt::format("was cut off: it had {} bytes and has {}", bytes_, now.st_size);
    }
  }
  bytes_ = now.st_size;
  return "";
}

std::optional<LedgerFileIdentity::Finding> LedgerFileIdentity::look() const {
  std::string what = moved(ledger_, identity_);
  if (what.empty()) what = cut_off();
  if (!what.empty()) {
    return Finding{true, fmt::format("the ledger {} {} while gnomond had it open: put that very "
                                     "file back, or stop gnomond and restore a backup (gnomon "
                                     "ledger restore)",
                                     ledger_.string(), what)};
  }
  // Whoever opens the ledger next makes SQLite write a new one: a deleted log looks replaced.
  if (!wal_identity_ || moved(wal_of(ledger_), *wal_identity_).empty()) return std::nullopt;
  return Finding{false, fmt::format("the ledger's write-ahead log {} was deleted, moved away or "
                                    "replaced while gnomond had it open: put that very file back, "
                                    "or restart gnomond, which then writes what it holds into the "
                                    "ledger",
                                    wal_of(ledger_).string())};
}

}  // namespace gnomon
