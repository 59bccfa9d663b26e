#include "trainer/shutdown.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/errors.h"

namespace gnomon {
namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGUSR1);
  return set;
}

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

void block_ending_signals() {
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalListener::SignalListener(std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  block_ending_signals();
  const sigset_t set = ending_signals();
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
  for (bool first = true;; first = false) {
    pollfd polled[2] = {{signals_.get(), POLLIN, 0}, {ended_.get(), POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno == EINTR) continue;
    if (polled[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    const int number = static_cast<int>(info.ssi_signo);
    if (first) {
      on_signal_(number);
      continue;
    }
    const sigset_t set = ending_signals();
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    std::signal(number, SIG_DFL);
    ::raise(number);
  }
}

}  // namespace gnomon
