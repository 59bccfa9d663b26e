#include "trainer/unsent_checkpoints.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace gnomon {
namespace {

// Which of `kept` goes next: positions within the older half.
size_t next_to_go(std::span<const UnsentCheckpoint> unsent, const std::vector<size_t>& kept,
                  int64_t count_max) {
  const size_t newest = std::min(static_cast<size_t>(count_max / 2), kept.size() / 2);
  const auto step = [&](size_t position) { return unsent[kept[position]].step; };
  size_t found = 1;
  int64_t nearest = -1;
  for (size_t i = 1; i < kept.size() - std::max<size_t>(newest, 1); ++i) {
    // A rollback goes back in steps.
    const int64_t gap = std::abs(step(i + 1) - step(i)) + std::abs(step(i) - step(i - 1));
    if (nearest < 0 || gap < nearest) {
      nearest = gap;
      found = i;
    }
  }
  return found;
}

}  // namespace

std::vector<size_t> unsent_to_delete(std::span<const UnsentCheckpoint> unsent,
                                     const UnsentBounds& bounds) {
  constexpr size_t kAlways = 2;
  int64_t bytes = 0;
  for (const UnsentCheckpoint& it : unsent) bytes += it.bytes;
  std::vector<size_t> deleted;
  if (std::ssize(unsent) <= bounds.count_max && bytes <= bounds.bytes_max) return deleted;
  const auto share = [](int64_t most) { return most - most / 4; };
  std::vector<size_t> kept(unsent.size());
  std::iota(kept.begin(), kept.end(), size_t{0});
  while (kept.size() > kAlways &&
         (std::ssize(kept) > share(bounds.count_max) || bytes > share(bounds.bytes_max))) {
    const size_t position = next_to_go(unsent, kept, bounds.count_max);
    bytes -= unsent[kept[position]].bytes;
    deleted.push_back(kept[position]);
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(position));
  }
  std::ranges::sort(deleted);
  return deleted;
}

}  // namespace gnomon
