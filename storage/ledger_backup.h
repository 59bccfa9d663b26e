// Copies of a ledger that are known to be good: made while a daemon writes it, and put back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "storage/ledger_audit.h"
#include "storage/ledger_connection.h"

namespace gnomon {

struct BackupOptions {
  // Without the pages that are free in the ledger, and with what belongs together side by side;
  // takes longer. No progress is reported.
  bool compact = false;
  // Called now and then with what is copied. May be empty.
  std::function<void(int64_t bytes_done, int64_t bytes)> progress = {};
  // Asked often; true ends the work with a LedgerError. May be empty.
  std::function<bool()> end_now = {};
};

struct BackupReport {
  std::filesystem::path file;
  int64_t bytes = 0;
  double seconds = 0;
  ledger::AuditVerdict audit;  // of the copy: its head can be noted elsewhere
};

// Copies the ledger as it is at one moment to `out`, which must not be there yet: under another
// name first, then every page, foreign key and hash of the copy is checked, it is synced and
// renamed. Needs room for a whole copy, a tenth and 16 MiB more. The ledger is only read; while it
// lasts, the WAL of a daemon that writes it cannot begin anew. Throws LedgerError (disk_full() when
// there is no room, or the copy was not good, or `end_now`), SystemError; then no file is left.
BackupReport back_up_ledger(const std::filesystem::path& ledger, const std::filesystem::path& out,
                            const BackupOptions& options = {});

struct RestoreReport {
  BackupReport copy;
  std::filesystem::path replaced;  // where the ledger that was there is now; empty = there was none
};

// Puts a copy of `backup`, checked as above, in the place of `ledger`. One that is there is refused
// unless `force`, which keeps it, with its WAL, under another name. Throws LedgerError: the backup
// is not good, a daemon has the ledger, it is a link to nothing, or there is one and no `force`;
// SystemError. Then the ledger is as it was. Links stay links: the file they lead to is replaced.
// It has the owner and mode of the one before; where there was none and root does this, the
// folder's.
RestoreReport restore_ledger(const std::filesystem::path& backup,
                             const std::filesystem::path& ledger, bool force,
                             const BackupOptions& options = {});

// "20261122T154500.123Z" of seconds since the epoch, for names of files: they sort by time.
std::string time_in_a_name(double seconds);

}  // namespace gnomon
