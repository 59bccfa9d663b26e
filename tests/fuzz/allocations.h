// What a thread takes by operator new, which allocations.cc replaces in the programs that have it.
// A reader of a file may need some times the file's size; what takes more has believed a number
// that stands in the file.
#pragma once

#include <cstdint>

namespace gnomon::fuzz {

// While it lives, this thread may hold at most `bytes` more than when it was made; a request that
// goes beyond ends the program and says its size. One at a time on a thread. What other threads,
// malloc and mmap take is not counted.
class AllocationLimit {
 public:
  explicit AllocationLimit(int64_t bytes);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

  // The most bytes that were held at once so far.
  int64_t most() const;
};

}  // namespace gnomon::fuzz
