// Who may write a ledger: one process, by whatever name it reaches the file.
#pragma once

#include <filesystem>

#include "base/files.h"

namespace gnomon {

// The file that `ledger` means, links resolved, whether it is there or not: the WAL and the lock
// lie beside that one. Throws LedgerError: no name, or a link to nothing, in whose place a new
// ledger would be made unasked.
std::filesystem::path resolve_ledger(const std::filesystem::path& ledger);

// True when there may be a ledger of this name, without touching anything. Throws LedgerError: as
// resolve_ledger(), a folder instead of a file, no folder around it or one that cannot be written.
void check_ledger_location(const std::filesystem::path& ledger);

// Keeps every other gnomond away from a ledger, by two locks: of FILE.lock, which is there before
// the ledger is, and of the ledger's own file, which has one inode under all its names and also
// when somebody removes FILE.lock. The latter is taken on file systems of a machine's own
// disks alone: elsewhere it would be in the way of SQLite's own. FILE.lock stays; forget() removes
// one that this made.
//
// Must be there before SQLite opens the ledger, and until SQLite has closed it: when a process
// closes any descriptor of a file, SQLite's POSIX locks on it are gone.
class LedgerLock {
 public:
  // `ledger` as resolve_ledger() gives it. Throws LedgerError when another process has it,
  // SystemError.
  explicit LedgerLock(const std::filesystem::path& ledger);
  // Takes the lock of a ledger's file that was made since.
  void hold_file();
  void forget();
  // The ledger's file; none while there is none.
  const FileDescriptor& file() const { return file_; }

 private:
  void hold_name();
  void note_holder() const;

  std::filesystem::path ledger_;
  std::filesystem::path path_;
  FileDescriptor lock_;
  FileDescriptor file_;
  bool made_ = false;
};

}  // namespace gnomon
