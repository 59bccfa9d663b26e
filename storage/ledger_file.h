// A ledger's files as bytes, before SQLite touches them: SQLite takes an empty file for a new
// database and drops a WAL that it cannot read, and with it what was acknowledged. Whatever is
// wrong here is reported and left as it is.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/files.h"

namespace gnomon {

// What follows a message about a ledger that is not whole.
inline constexpr const char* kRestoreAdvice =
    "nothing was changed; restore a backup (gnomon ledger restore --help)";

std::filesystem::path wal_of(const std::filesystem::path& ledger);
// 0 when there is none.
int64_t file_bytes(const std::filesystem::path& file);
// What the header of an open ledger says of its size; 0 when there is no such header.
int64_t bytes_in_header(const FileDescriptor& ledger);

enum class LedgerFileState {
  kAbsent,
  kWhole,    // as far as the header says
  kUnclear,  // shorter than its header says, which a WAL beside it may make good: look at every
             // page
};

// True when somebody may be writing the files: then only what they are is looked at. The rest would
// change meanwhile; and if it is this process that writes, to open the ledger and close it again
// would take SQLite's POSIX locks from it.
enum class LedgerWriter { kNone, kPossible };

// Looks at the header and the size of `ledger` and at all of its WAL. Throws LedgerError with one
// sentence of advice: a folder, empty, cut off, no SQLite file, a page size that is none; a WAL
// without its ledger, a WAL that is none or another's, or one with a hole before its end.
LedgerFileState check_ledger_files(const std::filesystem::path& ledger,
                                   LedgerWriter writer = LedgerWriter::kNone);

// Empties a WAL whose header cannot be read, of which check_ledger_files() has found that all of it
// is in the ledger: SQLite would begin anew with the salts of such a header, and frames that are
// left behind would look like its own. Whether there was such a one. Throws SystemError. For who
// alone may write.
bool drop_wal_that_is_over(const std::filesystem::path& ledger);

}  // namespace gnomon
