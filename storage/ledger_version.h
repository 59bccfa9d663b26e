// Which version of the ledger's schema this build writes and reads.
#pragma once

namespace gnomon {

// That of storage/schema.sql. A column that may be NULL is added without a new version.
inline constexpr int kLedgerVersion = 1;

}  // namespace gnomon
