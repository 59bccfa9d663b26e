// Which of a host's devices a rank takes: one process for each.
#pragma once

#include <fmt/format.h>

#include <optional>

#include "base/errors.h"

namespace gnomon::cuda {

// The device, among the `devices` that the process sees, for the rank with this number on its host
// (local_rank() of launch_variables.h). Where it sees one alone, that one: launchers may give each
// rank its own. Throws Error when there are fewer devices than ranks.
inline int device_of(std::optional<int> local_rank, int devices) {
  if (!local_rank || devices == 1) return 0;
  if (*local_rank < devices) return *local_rank;
  throw Error(
      fmt::format("this is rank {} of its host, counted from 0, and the host has {} CUDA "
                  "devices: start at most so many ranks on it",
                  *local_rank, devices));
}

}  // namespace gnomon::cuda
