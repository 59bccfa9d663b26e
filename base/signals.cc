#include "base/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "base/errors.h"

namespace gnomon {
namespace {

sigset_t set_of(std::span<const int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  return set;
}

}  // namespace

void block_signals(std::span<const int> numbers) {
  const sigset_t set = set_of(numbers);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void end_by_signal(int number) {
  std::signal(number, SIG_DFL);
  const sigset_t set = set_of({&number, 1});
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(number);
}

SignalListener::SignalListener(std::span<const int> numbers, std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)) {
  block_signals(numbers);
  const sigset_t set = set_of(numbers);
  signals_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC));
  ended_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!signals_ || !ended_) throw SystemError("make", "a signal descriptor", errno);
  thread_ = std::thread([this] { listen(); });
}

SignalListener::~SignalListener() {
  const uint64_t one = 1;
  if (::write(ended_.get(), &one, sizeof(one)) < 0) std::abort();
  thread_.join();
}

void SignalListener::listen() {
  for (;;) {
    pollfd polled[2] = {{signals_.get(), POLLIN, 0}, {ended_.get(), POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno == EINTR) continue;
    if (polled[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    on_signal_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace gnomon
