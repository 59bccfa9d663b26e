// A large ledger, as months of training leave it: live runs and ended ones with steps that are
// events by themselves. To measure starts and backups on.
#pragma once

#include <filesystem>

#include "base/progress.h"

namespace gnomon::bench {

// Adds steps to a new ledger until its file has so many bytes. `progress` is called with megabytes.
// Throws LedgerError.
void make_large_ledger(const std::filesystem::path& file, double bytes, Progress& progress);

}  // namespace gnomon::bench
