#pragma once

#include <chrono>

namespace gnomon {

// Returns the seconds since the epoch, which the system's clock may set back.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace gnomon
