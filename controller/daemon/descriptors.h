// File descriptors: each connection takes one, and a process may have only so many.
#pragma once

#include <cstdint>
#include <string>

namespace gnomon {

// Besides connections: the ledger's files, sockets, timers, connections that are being refused, and
// those to receivers of notifications (at most 16 of these with four each, and 16 idle ones).
inline constexpr int64_t kDescriptorsBesides = 128;

// What would be accepted in place of connections that need `needed` open files, where a process may
// have only so many.
std::string connections_that_fit(uint64_t files, uint64_t needed);

// Raises this process's limit (RLIMIT_NOFILE) to what so many connections need. Throws ConfigError,
// for the key limits.connections of `file`, when it may not be raised so far.
void reserve_descriptors(int64_t connections, const std::string& file);

}  // namespace gnomon
