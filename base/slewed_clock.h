// Seconds since the epoch that never jump: for deadlines and records of a process that runs for
// months while somebody sets the machine's clock.
#pragma once

#include <functional>
#include <mutex>

namespace gnomon {

class SlewedClock {
 public:
  // How much of the time that passes is gained or lost while the wall clock differs.
  static constexpr double kSlew = 0.1;

  // Begins at what `wall` (seconds since the epoch) says. `steady` in seconds of a clock that never
  // jumps.
  SlewedClock(std::function<double()> wall, std::function<double()> steady);

  // Goes at the pace of the steady clock, up to a tenth faster or slower until it agrees with the
  // wall clock: a deadline of 100 s is over after 91 to 111 s of steady time, whatever the wall
  // clock does. Never goes back. Thread-safe.
  double now();
  // Seconds by which the wall clock is ahead of now(); below 0: behind it. Thread-safe.
  double wall_ahead();

 private:
  double advance(double wall);

  std::function<double()> wall_;
  std::function<double()> steady_;
  std::mutex mutex_;
  double steady_then_;
  double now_;
};

}  // namespace gnomon
