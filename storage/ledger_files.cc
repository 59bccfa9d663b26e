#include <fmt/format.h>
#include <sqlite3.h>

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

}  // namespace

LedgerFiles::LedgerFiles(const fs::path& ledger)
    : ledger_(ledger), lock_((check_ledger_location(ledger), ledger)) {
  ledger_was_there_ = fs::exists(ledger_);
  wal_was_there_ = fs::exists(wal_of(ledger_));
  try {
    state_ = check_ledger_files(ledger_);
    if (state_ == LedgerFileState::kAbsent) {
      make_ledger(ledger_);
      lock_.hold_file();
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
