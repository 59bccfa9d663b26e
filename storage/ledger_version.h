// Which version of the ledger's schema this build writes and reads.
#pragma once

namespace gnomon {

// That of storage/schema.sql.
inline constexpr int kLedgerVersion = 1;

}  // namespace gnomon
