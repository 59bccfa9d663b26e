#include "controller/supervisor/deadlines.h"

#include <cmath>

namespace gnomon {

void Deadlines::set(int64_t run, double at) {
  std::lock_guard lock(mutex_);
  if (std::isfinite(at)) {
    by_run_[run] = at;
  } else {
    by_run_.erase(run);
  }
}

std::vector<int64_t> Deadlines::due(double now) const {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> runs;
  for (const auto& [run, at] : by_run_) {
    if (at <= now) {
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace gnomon
