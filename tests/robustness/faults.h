// What happens to the daemon of a history, drawn from its seed, and when: moments are counted in
// requests that clients got answers to, so that a faster machine has the same history in less time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/robustness/draw.h"

namespace gnomon::robustness {

enum class Fault {
  kKill,       // SIGKILL, from outside
  kFailpoint,  // SIGKILL at a named moment (base/failpoint.h)
  kStop,       // SIGSTOP for a while, from outside or at a named moment
  kError,      // a commit fails at a named moment
  kDisk,       // I/O errors, or no room, from a library, for a while
  kFull,       // a file system of its own is really full for a while; needs isolate()
  kClock,      // the wall clock jumps
  kNetwork,    // requests are dropped, cut, delayed, repeated; partitions
  kLink,       // loopback is down for a while; needs isolate()
  kPower,      // the power is cut: what was not synced may be lost, torn or out of order
  kTerminate,  // SIGTERM
  kBackup,     // killed while it makes backups
  kMigration,  // killed while it makes its ledger
  kLockstep,   // killed, with one run and one verifier in turns: compared with a calm history
};

struct FaultName {
  Fault fault;
  std::string_view name;
};
const std::vector<FaultName>& fault_names();
std::string_view name_of(Fault fault);

// GNOMON_FAILPOINTS for a start of the daemon under this fault; empty for none.
std::string failpoints_of(Fault fault, Draw& draw);

}  // namespace gnomon::robustness
