#include "storage/ledger_backup.h"

#include <SQLiteCpp/Statement.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>

#include "base/failpoint.h"
#include "base/file_access.h"
#include "base/files.h"
#include "base/wall_clock.h"
#include "storage/ledger.h"
#include "storage/ledger_integrity.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

fs::path with_suffix(const fs::path& file, const std::string& suffix) {
  fs::path path = file;
  path += suffix;
  return path;
}

fs::path folder_of(const fs::path& file) { return fs::absolute(file).parent_path(); }

// Whose ledger it is: of whoever has the folder in which it is named, or else of whom the file is.
Ownership owner_of_ledger(const fs::path& name, const fs::path& ledger) {
  Ownership found = ownership_for(ledger);
  const std::optional<Ownership> folder = ownership_of(folder_of(name));
  if (folder && folder->owner != 0) {
    found.owner = folder->owner;
    found.group = folder->group;
  }
  return found;
}

void require_readable(const fs::path& backup, const AsOwner& as_owner) {
  if (!as_owner.changed() || ::faccessat(AT_FDCWD, backup.c_str(), R_OK, AT_EACCESS) == 0) return;
  throw LedgerError(
      fmt::format("the backup {} cannot be read by user {}, whose the ledger's folder "
                  "is and with whose rights root restores; copy it where he may read "
                  "it",
                  backup.string(), ::geteuid()),
      SQLITE_CANTOPEN);
}

// What was there keeps its permissions.
void copy_mode(const fs::path& copy, const fs::path& ledger) {
  const std::optional<Ownership> old = ownership_of(ledger);
  if (!old) return;
  const FileDescriptor file = FileDescriptor::open(copy, O_RDONLY | O_NOFOLLOW);
  if (::fchmod(file.get(), old->mode) != 0) {
    throw SystemError("give its mode to", copy.string(), errno);
  }
}

// A file that is removed again unless it was renamed to what it was made for.
class PartialFile {
 public:
  explicit PartialFile(const fs::path& wanted)
      : wanted_(wanted), path_(with_suffix(wanted, ".partial")) {
    remove();
  }
  ~PartialFile() {
    if (!done_) remove();
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const fs::path& path() const { return path_; }
  // In place of whatever is there.
  void rename() {
    sync_path(path_);
    failpoint::reached(failpoint::Point::kBackupRename);
    fs::rename(path_, wanted_);
    done_ = true;
    sync_path(folder_of(wanted_));
  }

 private:
  void remove() {
    std::error_code ignored;
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
      fs::remove(with_suffix(path_, suffix), ignored);
    }
  }
  fs::path wanted_;
  fs::path path_;
  bool done_ = false;
};

void check_room(const fs::path& ledger, const fs::path& out) {
  constexpr int64_t kReserve = int64_t{16} << 20;
  const fs::path folder = folder_of(out);
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) {
    throw SystemError("find the free space of", folder.string(), errno);
  }
  const int64_t bytes = file_bytes(ledger) + file_bytes(wal_of(ledger));
  const int64_t needed = bytes + bytes / 10 + kReserve;
  const auto free = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  if (free < needed) {
    throw LedgerError(fmt::format("{} has {} bytes free; a copy of {} needs {}: make room there",
                                  folder.string(), free, ledger.string(), needed),
                      SQLITE_FULL);
  }
}

[[noreturn]] void ended() { throw LedgerError("the copy was given up", SQLITE_INTERRUPT); }

// One read of the source from beginning to end: other connections may write it meanwhile without
// the copy beginning anew.
void copy_pages(SQLite::Database& source, const fs::path& to, const BackupOptions& options) {
  constexpr int kPagesAtOnce = 512;
  SQLite::Database target(to.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  // It is synced as a whole, and removed when it does not come to that.
  target.exec("PRAGMA synchronous=OFF; PRAGMA journal_mode=OFF");
  source.exec("BEGIN; SELECT count(*) FROM sqlite_schema");
  const int64_t page_bytes = source.execAndGet("PRAGMA page_size").getInt64();
  sqlite3_backup* backup =
      sqlite3_backup_init(target.getHandle(), "main", source.getHandle(), "main");
  if (backup == nullptr) throw SQLite::Exception(target.getHandle());
  int code = SQLITE_OK;
  bool end = false;
  while (code == SQLITE_OK && !end) {
    code = sqlite3_backup_step(backup, kPagesAtOnce);
    const int64_t pages = sqlite3_backup_pagecount(backup);
    if (options.progress) {
      options.progress((pages - sqlite3_backup_remaining(backup)) * page_bytes, pages * page_bytes);
    }
    end = options.end_now && options.end_now();
  }
  sqlite3_backup_finish(backup);
  failpoint::reached(failpoint::Point::kBackupCopy);
  source.tryExec("COMMIT");
  if (end) ended();
  if (code != SQLITE_DONE) {
    throw LedgerError(
        fmt::format("cannot copy the ledger to {}: {}", to.string(), sqlite3_errstr(code)), code);
  }
}

void copy_compactly(SQLite::Database& source, const fs::path& to, const BackupOptions& options) {
  const Interrupter interrupter(source, options.end_now);
  SQLite::Statement vacuum(source, "VACUUM INTO ?");
  vacuum.bind(1, to.string());
  vacuum.exec();
}

ledger::AuditVerdict prove(const fs::path& copy, const BackupOptions& options) {
  LedgerHealth health = examine_closed_ledger(copy, options.end_now);
  if (!health.good()) {
    throw LedgerError(
        fmt::format("the copy is not good, and so may be the ledger: {}", health.problems.front()),
        SQLITE_CORRUPT);
  }
  return std::move(health.audit);
}

// Opens a file that nobody writes; leaves no -shm file beside it.
SQLite::Database open_closed(const fs::path& file) {
  return {sqlite_uri(file) + "?immutable=1", SQLite::OPEN_READONLY | SQLite::OPEN_URI};
}

BackupReport copy_into(const fs::path& ledger, bool closed, PartialFile& partial,
                       const BackupOptions& options) try {
  const auto start = std::chrono::steady_clock::now();
  check_ledger_files(ledger, closed ? LedgerWriter::kNone : LedgerWriter::kPossible);
  check_room(ledger, partial.path());
  {
    SQLite::Database source = closed ? open_closed(ledger) : open_for_looking(ledger);
    options.compact ? copy_compactly(source, partial.path(), options)
                    : copy_pages(source, partial.path(), options);
  }
  BackupReport report;
  report.audit = prove(partial.path(), options);
  report.bytes = file_bytes(partial.path());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
} catch (const SQLite::Exception& error) {
  if ((error.getErrorCode() & 0xff) == SQLITE_INTERRUPT) ended();
  throw ledger_error(fmt::format("cannot copy the ledger {}", ledger.string()), error);
}

// So that the ledger that is kept is one file. Where it is damaged, its WAL is kept beside it.
void try_to_merge_wal(const fs::path& ledger) {
  if (file_bytes(wal_of(ledger)) == 0) return;
  try {
    if (check_ledger_files(ledger) != LedgerFileState::kWhole) return;
    Connection connection(ledger, Connection::Kind::kWriter);
    connection.database().tryExec("PRAGMA wal_checkpoint(TRUNCATE)");
  } catch (const LedgerError&) {
  }
}

// Gives what is there a second name. The first one stays until the copy takes it, so that a crash
// leaves no empty place, in which a daemon would make a new ledger.
fs::path set_aside(const fs::path& ledger) {
  const double now = now_seconds();
  fs::path aside = with_suffix(ledger, ".replaced-" + time_in_a_name(now));
  try_to_merge_wal(ledger);
  fs::create_hard_link(ledger, aside);
  if (file_bytes(wal_of(ledger)) > 0) fs::rename(wal_of(ledger), wal_of(aside));
  return aside;
}

}  // namespace

std::string time_in_a_name(double seconds) {
  const double whole = std::floor(seconds);
  return fmt::format("{:%Y%m%dT%H%M%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(whole)),
                     static_cast<int>((seconds - whole) * 1000));
}

BackupReport back_up_ledger(const fs::path& ledger, const fs::path& out,
                            const BackupOptions& options) {
  if (const std::string why = why_not_writable(folder_of(out)); !why.empty()) {
    throw LedgerError(why, SQLITE_CANTOPEN);
  }
  std::error_code unreadable;
  if (fs::exists(out, unreadable)) {
    throw LedgerError(fmt::format("{} is there already; a new name is accepted", out.string()),
                      SQLITE_CANTOPEN);
  }
  PartialFile partial(out);
  BackupReport report = copy_into(resolve_ledger(ledger), false, partial, options);
  partial.rename();
  report.file = out;
  return report;
}

RestoreReport restore_ledger(const fs::path& from, const fs::path& to, bool force,
                             const BackupOptions& options) {
  check_ledger_location(to);
  const fs::path backup = resolve_ledger(from);
  const fs::path ledger = resolve_ledger(to);
  const AsOwner as_owner(owner_of_ledger(to, ledger));
  require_readable(backup, as_owner);
  LedgerLock lock(ledger);
  try {
    const bool there = fs::exists(ledger) || file_bytes(wal_of(ledger)) > 0;
    if (there && !force) {
      throw LedgerError(fmt::format("{} is there already; --force puts it aside under another name",
                                    ledger.string()),
                        SQLITE_CANTOPEN);
    }
    PartialFile partial(ledger);
    RestoreReport report;
    report.copy = copy_into(backup, file_bytes(wal_of(backup)) == 0, partial, options);
    copy_mode(partial.path(), ledger);
    if (there && fs::exists(ledger)) report.replaced = set_aside(ledger);
    std::error_code ignored;
    fs::remove(with_suffix(ledger, "-shm"), ignored);
    if (file_bytes(wal_of(ledger)) > 0) {
      fs::rename(wal_of(ledger), with_suffix(wal_of(ledger), ".replaced"));
    }
    fs::remove(wal_of(ledger), ignored);
    // On the disk before the copy has the ledger's name: the old WAL must not come back beside it.
    sync_path(folder_of(ledger));
    partial.rename();
    report.copy.file = ledger;
    return report;
  } catch (...) {
    lock.forget();
    throw;
  }
}

}  // namespace gnomon
