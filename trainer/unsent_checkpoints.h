// Which checkpoints stay while the controller is away. Each is kept at first, since the controller
// may need any of them once it has their reports; an outage must not fill the storage with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gnomon {

struct UnsentCheckpoint {
  int64_t step = 0;
  int64_t bytes = 0;
};

struct UnsentBounds {
  int64_t count_max = 64;
  int64_t bytes_max = 0;
};

// Returns the indices of the unsent checkpoints (oldest first) to delete, ascending; none within
// both bounds. Beyond them so many go that the rest takes three quarters of what it may: of the
// older half always the one whose neighbours are nearest to each other. So the newest stay whole
// and older ones as an even spread. The oldest and the newest always stay.
std::vector<size_t> unsent_to_delete(std::span<const UnsentCheckpoint> unsent,
                                     const UnsentBounds& bounds);

}  // namespace gnomon
