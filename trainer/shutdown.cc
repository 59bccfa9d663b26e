#include "trainer/shutdown.h"

#include <array>
#include <csignal>
#include <utility>

namespace gnomon {
namespace {

constexpr std::array<int, 3> kEndingSignals = {SIGTERM, SIGINT, SIGUSR1};

}  // namespace

void Shutdown::request() {
  {
    std::lock_guard lock(mutex_);
    requested_ = true;
  }
  changed_.notify_all();
}

bool Shutdown::requested() const {
  std::lock_guard lock(mutex_);
  return requested_;
}

bool Shutdown::wait_for(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration, [this] { return requested_; });
}

void block_ending_signals() { block_signals(kEndingSignals); }

EndingSignals::EndingSignals(std::function<void(int)> on_signal)
    : listener_(kEndingSignals, [this, on_signal = std::move(on_signal)](int number) {
        if (!std::exchange(first_, false)) end_by_signal(number);
        on_signal(number);
      }) {
  ignore_write_signals();
}

}  // namespace gnomon
