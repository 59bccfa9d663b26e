#include "base/slewed_clock.h"

#include <algorithm>
#include <utility>

namespace gnomon {

SlewedClock::SlewedClock(std::function<double()> wall, std::function<double()> steady)
    : wall_(std::move(wall)), steady_(std::move(steady)), steady_then_(steady_()), now_(wall_()) {}

double SlewedClock::now() {
  std::lock_guard lock(mutex_);
  return advance(wall_());
}

double SlewedClock::wall_ahead() {
  std::lock_guard lock(mutex_);
  const double wall = wall_();
  return wall - advance(wall);
}

double SlewedClock::advance(double wall) {
  const double steady = steady_();
  const double passed = steady - steady_then_;
  const double at_pace = now_ + passed;
  steady_then_ = steady;
  now_ = at_pace + std::clamp(wall - at_pace, -kSlew * passed, kSlew * passed);
  return now_;
}

}  // namespace gnomon
