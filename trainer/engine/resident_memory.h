// How much memory the process has right now, for what is printed about it at start.
#pragma once

#include <cstdint>

namespace gnomon {

// Bytes of this process in memory (code, libraries and data), as /proc/self/statm tells. Throws
// SystemError where that cannot be read.
int64_t resident_bytes();

// The most that it ever was, as getrusage tells.
int64_t resident_bytes_peak();

}  // namespace gnomon
