// A disk that fails when it is told to: every file that SQLite opens in this process while a
// FailingDisk exists goes through it. One at a time.
#pragma once

#include <cstdint>

namespace gnomon {

class FailingDisk {
 public:
  FailingDisk();
  ~FailingDisk();
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;

  // From now on the `at`-th (from 0) write, sync or truncation and the `count - 1` after it return
  // `code` (SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC) without being done, but a sync
  // that fails may have been.
  void fail(int64_t at, int64_t count, int code);
  void heal();
  // Operations since fail() or heal().
  int64_t operations() const;
};

}  // namespace gnomon
