// Runs a piece of work in a child process and strikes it at a chosen system call: kills it there,
// or makes that call fail. Only calls that change the file system are counted, so that a loop over
// them visits every point at which a crash or an error can leave something behind.
#pragma once

#include <functional>
#include <vector>

namespace gnomon {

enum class Strike { kNone, kKill, kFail };

struct TracedRun {
  bool killed = false;
  int exit_status = -1;     // what the work returned
  std::vector<long> calls;  // numbers (SYS_...) of the counted calls that were begun, in order
};

// `work` runs in a forked child; it must not throw. `at` counts from 0. kFail makes the call return
// `error` (ENOSPC, say) without being done. `meanwhile` runs in this process while the child stands
// at the beginning of that call.
TracedRun run_traced(const std::function<int()>& work, Strike strike, size_t at, int error = 0,
                     const std::function<void()>& meanwhile = {});

}  // namespace gnomon
