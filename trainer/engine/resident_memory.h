// How much memory the process has right now, for what is printed about it at start.
#pragma once

#include <cstdint>

namespace gnomon {

// Bytes of this process in memory (code, libraries and data), from /proc/self/statm. Throws
// SystemError where that cannot be read.
int64_t resident_bytes();

// The most that it ever was, from getrusage.
int64_t resident_bytes_peak();

}  // namespace gnomon
