#include "kernels/comm/tcp_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/errors.h"
#include "kernels/comm/sockets.h"

namespace gnomon::tcp {
namespace {

// For rank 0 to say it and to end the others.
constexpr std::chrono::seconds kGrace{3};
constexpr std::chrono::seconds kMoreGrace{1};
constexpr double kNoticeSecondsMax = 1;
constexpr uint32_t kMessageMax = 4096;
// Before the text of a rank that has failed itself.
constexpr char kFails = '!';

[[noreturn]] void wait_for_the_end() {
  while (true) pause();
}

}  // namespace

Watch::Watch(int rank, int size, std::vector<FileDescriptor> control,
             const std::vector<FileDescriptor>& data)
    : rank_(rank), size_(size), control_(std::move(control)), data_(data) {
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (!wake_) throw SystemError("make", "an event", errno);
  // The program's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Watch::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void Watch::watch() {
  std::vector<pollfd> all{{wake_.get(), POLLIN, 0}};
  std::vector<size_t> from{0};
  for (size_t i = 0; i < control_.size(); ++i) {
    if (!control_[i]) continue;
    all.push_back({control_[i].get(), POLLIN, 0});
    from.push_back(i);
  }
  while (true) {
    if (::poll(all.data(), all.size(), -1) < 0) continue;
    if (all[0].revents != 0) return;
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].revents != 0) receive_notice(from[i]);
    }
  }
}

// Ranks report to rank 0 why the job must end, rank 0 ends it on all; or a connection is gone.
void Watch::receive_notice(size_t from) {
  uint32_t length = 0;
  std::string text;
  const Deadline deadline = seconds_from_now(kNoticeSecondsMax);
  bool received = receive_all(control_[from], room_of(length), deadline) && length <= kMessageMax;
  if (received) {
    text.resize(length);
    received = receive_all(control_[from], std::as_writable_bytes(std::span(text)), deadline);
  }
  if (received && rank_ != 0) follow_rank_0(text);
  const bool fails = text.starts_with(kFails);
  if (received) announce_and_end(fails ? text.substr(1) : text, fails);
  const int lost = rank_ == 0 ? static_cast<int>(from) : 0;
  const std::string gone = fmt::format(
      "rank {} of {}: rank {} is gone: its process ended, or its host cannot be reached", rank_,
      size_, lost);
  if (rank_ > 1) {
    std::this_thread::sleep_for(kMoreGrace);
    if (one_below_has_ended()) end_in_silence();
  }
  announce_and_end(gone);
}

void Watch::send_text(const FileDescriptor& socket, const std::string& text) const {
  const Deadline deadline = seconds_from_now(kNoticeSecondsMax);
  const auto length = static_cast<uint32_t>(std::min<size_t>(text.size(), kMessageMax));
  if (send_all(socket, bytes_of(length), deadline)) {
    send_all(socket, std::as_bytes(std::span(text)).first(length), deadline);
  }
}

void Watch::announce_and_end(const std::string& why, bool fails) {
  if (ending_.exchange(true)) wait_for_the_end();
  std::fprintf(stderr, "%s; the job ends\n", why.c_str());
  std::fflush(stderr);
  if (rank_ == 0) {
    for (const FileDescriptor& socket : control_) {
      if (socket) send_text(socket, fails ? why : "");
    }
  }
  std::_Exit(1);
}

// `why` is what a rank that failed has said itself; empty where none did.
void Watch::follow_rank_0(const std::string& why) {
  if (ending_.exchange(true)) wait_for_the_end();
  if (!why.empty() && !why.starts_with(fmt::format("rank {} of", rank_))) {
    std::fprintf(stderr, "rank %d of %d ends with the job: %s\n", rank_, size_, why.c_str());
    std::fflush(stderr);
  }
  std::_Exit(1);
}

void Watch::end_in_silence() const { std::_Exit(1); }

bool Watch::one_below_has_ended() const {
  for (size_t other = 1; other < static_cast<size_t>(rank_); ++other) {
    if (is_closed(data_[other])) return true;
  }
  return false;
}

void Watch::end(const std::string& why, bool fails) {
  std::fflush(stdout);
  const std::string text = fmt::format("rank {} of {}: {}", rank_, size_, why);
  if (rank_ == 0) announce_and_end(text, fails);
  if (fails) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::fflush(stderr);
  }
  send_text(control_.front(), fails ? kFails + text : text);
  std::this_thread::sleep_for(kGrace);
  if (rank_ > 1) {
    std::this_thread::sleep_for(kMoreGrace);
    if (one_below_has_ended()) end_in_silence();
  }
  announce_and_end(text);
}

void Watch::lost(const std::string& why) {
  std::this_thread::sleep_for(kGrace);
  end(why);
}

}  // namespace gnomon::tcp
