// The versions of the ledger's schema: what a new file gets, how an older one is brought to the
// same, and which files are refused. The version stands in PRAGMA user_version.
#pragma once

#include <filesystem>
#include <span>

#include "storage/ledger_connection.h"
#include "storage/ledger_version.h"

namespace gnomon {

// The version of a file that may become, or is, a ledger of this version or an older one; 0 =
// empty. Throws LedgerError for another program's file and for a newer ledger.
int ledger_version(SQLite::Database& database, const std::filesystem::path& file);

// Looks at a file before it is opened for writing, which would change even a foreign one. Throws
// LedgerError when it is no database, belongs to another program or is newer than this build. One
// with a WAL beside it is left to migrate_and_check(): its own pages are not all there is.
void inspect_ledger(const std::filesystem::path& file);

// Makes an empty ledger under another name and renames it, so that one that is there is whole.
// Throws LedgerError, SystemError.
void make_ledger(const std::filesystem::path& file);

// One version to the next.
struct Migration {
  const char* sql;
};

// Brings a ledger of `version`, 1 or above, to version 1 + the number of `steps`, of which entry i
// makes version i + 2. Each is a transaction of its own. Throws SQLite::Exception: the file has the
// last version that was made.
void migrate(SQLite::Database& database, int version, std::span<const Migration> steps);

// Brings the file to kLedgerVersion, each version in one transaction of its own, so that a crash
// leaves it at a version that the next start goes on from; then adds the columns that may be NULL
// and are not there, and looks for every table, column, index and trigger. All pages are looked at
// before a file of an older version is changed, and when `look_at_pages`. Throws LedgerError when
// the file is newer than this build, belongs to another program or is damaged; then nothing has
// been changed.
void migrate_and_check(Connection& writer, const std::filesystem::path& file, bool look_at_pages);

// Throws LedgerError naming the first table's column, index or trigger that is missing.
void check_schema(SQLite::Database& database, const std::filesystem::path& file);

}  // namespace gnomon
