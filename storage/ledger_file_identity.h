// Checks whether the files that a running ledger writes are still those that its name leads to: the
// system lets a process go on writing a file that somebody has deleted, and what is acknowledged
// then is gone with the process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "base/files.h"
#include "storage/ledger_connection.h"

namespace gnomon {

// The ledger's files are not in their place: nothing more is written.
class LedgerLost : public LedgerError {
 public:
  explicit LedgerLost(const std::string& message);
};

class LedgerFileIdentity {
 public:
  struct Finding {
    bool ledger_lost = false;  // else it is the WAL, whose content SQLite still can put into it
    std::string what;          // a sentence with advice
  };

  // `open`: the ledger, which SQLite has opened too, with its WAL; outlives this.
  LedgerFileIdentity(std::filesystem::path ledger, const FileDescriptor& open);

  // Nothing when all is well. Three looks at file names, some microseconds; from any thread. A
  // ledger that is put back is well again.
  std::optional<Finding> look() const;

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Identity&) const = default;
  };
  static std::string moved(const std::filesystem::path& file, const Identity& expected);
  std::string cut_off() const;

  std::filesystem::path ledger_;
  const FileDescriptor& open_;
  Identity identity_;
  std::optional<Identity> wal_identity_;
  mutable std::mutex mutex_;
  mutable int64_t bytes_ = 0;  // of the ledger when it was well
};

}  // namespace gnomon
