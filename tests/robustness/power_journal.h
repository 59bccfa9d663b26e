// What the library power_cut.cc writes and power_disk.cc reads: everything that a process did to
// the files below some paths, in order. A record is a PowerRecord, then its two paths and its data.
#pragma once

#include <cstdint>

namespace gnomon::robustness {

enum class PowerEvent : uint32_t {
  kCreated,     // first path: a new file with this inode
  kSeen,        // first path: a file or folder that was there, with this inode
  kFolder,      // first path: a new folder with this inode
  kWritten,     // inode, offset, data
  kTruncated,   // inode, offset: its size from now on
  kSynced,      // inode of a file or folder
  kRenamed,     // first path to second; what was there is replaced
  kExchanged,   // both paths
  kLinked,      // the first path's file is also the second's
  kRemoved,     // first path, of a file
  kRemovedDir,  // first path
};

struct PowerRecord {
  PowerEvent event = PowerEvent::kCreated;
  uint32_t first_bytes = 0;
  uint32_t second_bytes = 0;
  uint32_t padding = 0;
  uint64_t inode = 0;
  uint64_t offset = 0;
  uint64_t data_bytes = 0;
};

// Environment variables of the process that is watched.
inline constexpr const char* kPowerPaths = "GNOMON_POWER_PATHS";      // prefixes, ':' between
inline constexpr const char* kPowerJournal = "GNOMON_POWER_JOURNAL";  // appended to
// The process is killed behind so many records; absent or 0: never.
inline constexpr const char* kPowerCutAfter = "GNOMON_POWER_CUT_AFTER";
// A disk that lies: a sync is answered and nothing is kept by it.
inline constexpr const char* kPowerLies = "GNOMON_POWER_LIES";

}  // namespace gnomon::robustness
