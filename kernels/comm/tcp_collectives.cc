#include "kernels/comm/tcp_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "kernels/comm/sockets.h"
#include "kernels/comm/tcp_watch.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

enum class Operation : uint32_t { kExchange = 1, kBroadcast, kBarrier, kFarewell };

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kExchange:
      return "an exchange of data";
    case Operation::kBroadcast:
      return "a broadcast";
    case Operation::kBarrier:
      return "a barrier";
    case Operation::kFarewell:
      return "the end of the job";
  }
  return "something else";
}

// Before the bytes of every message.
struct Head {
  Operation operation = {};
  uint32_t number = 0;  // of the operation among all of the rank
  uint64_t bytes = 0;
  bool operator==(const Head&) const = default;
};

// What of an operation one other rank still has to be sent, or to send.
struct Sending {
  Head head;
  std::span<const std::byte> data;
  size_t done = 0;
  size_t all() const { return sizeof(Head) + data.size(); }
};
struct Receiving {
  Head expected, head;
  std::span<std::byte> room;
  size_t done = 0;
  size_t all() const { return sizeof(Head) + room.size(); }
};

class TcpCollectives final : public Collectives {
 public:
  TcpCollectives(const tcp::Meeting& meeting, double timeout_seconds)
      : TcpCollectives(meeting, tcp::meet(meeting), timeout_seconds) {}
  ~TcpCollectives() override {
    watch_.stop();
    run_with_all(Operation::kFarewell);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "tcp"; }

  void exchange(std::span<const std::span<const std::byte>> to,
                std::span<const std::span<std::byte>> from) override {
    GNOMON_ASSERT(std::ssize(to) == size_ && std::ssize(from) == size_);
    begin();
    for (size_t other = 0; other < to.size(); ++other) {
      if (!to[other].empty()) send(Operation::kExchange, other, to[other]);
      if (!from[other].empty()) receive(Operation::kExchange, other, from[other]);
    }
    run(Operation::kExchange);
  }

  void broadcast(std::span<std::byte> data, int root) override {
    begin();
    if (rank_ != root) {
      receive(Operation::kBroadcast, static_cast<size_t>(root), data);
    } else {
      for (size_t other = 0; other < peers_.size(); ++other) {
        send(Operation::kBroadcast, other, data);
      }
    }
    run(Operation::kBroadcast);
  }

  void barrier() override { run_with_all(Operation::kBarrier); }
  void expect_pause() override { patient_ = true; }
  [[noreturn]] void abort(const std::string& message) override { watch_.end(message, true); }

 private:
  TcpCollectives(const tcp::Meeting& meeting, tcp::Connections met, double timeout_seconds)
      : rank_(meeting.rank),
        size_(meeting.size),
        timeout_(timeout_seconds),
        peers_(std::move(met.data)),
        sending_(peers_.size()),
        receiving_(peers_.size()),
        watch_(rank_, size_, std::move(met.control), peers_) {}

  void begin() {
    ++number_;
    std::ranges::fill(sending_, std::nullopt);
    std::ranges::fill(receiving_, std::nullopt);
  }
  void send(Operation operation, size_t other, std::span<const std::byte> data) {
    if (static_cast<int>(other) == rank_) return;
    sending_[other] = Sending{{operation, number_, data.size()}, data};
  }
  void receive(Operation operation, size_t other, std::span<std::byte> room) {
    if (static_cast<int>(other) == rank_) return;
    receiving_[other] = Receiving{{operation, number_, room.size()}, {}, room};
  }
  void run_with_all(Operation operation) {
    begin();
    for (size_t other = 0; other < peers_.size(); ++other) {
      send(operation, other, {});
      receive(operation, other, {});
    }
    run(operation);
  }

  // Until all of begin()'s operation is sent and received.
  void run(Operation operation) {
    const Clock::time_point start = Clock::now();
    while (true) {
      waits_.clear();
      for (size_t other = 0; other < peers_.size(); ++other) {
        short events = 0;
        if (receiving_[other] && !advance_receiving(other)) events |= POLLIN;
        if (sending_[other] && !advance_sending(other)) events |= POLLOUT;
        if (events != 0) waits_.push_back({peers_[other].get(), events, 0});
      }
      if (waits_.empty()) break;
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (patient_) {
        ::poll(waits_.data(), waits_.size(), -1);
      } else if (waited > timeout_) {
        silent(operation, waited);
      } else {
        ::poll(waits_.data(), waits_.size(),
               tcp::poll_milliseconds(start + tcp::from_seconds(timeout_)) + 1);
      }
    }
    patient_ = false;
  }

  // True when all is sent.
  bool advance_sending(size_t other) {
    Sending& it = *sending_[other];
    while (it.done < it.all()) {
      std::array<iovec, 2> parts = {};
      int count = 0;
      if (it.done < sizeof(Head)) {
        std::byte* head = reinterpret_cast<std::byte*>(&it.head) + it.done;
        parts[static_cast<size_t>(count++)] = {head, sizeof(Head) - it.done};
      }
      const size_t sent = it.done < sizeof(Head) ? 0 : it.done - sizeof(Head);
      parts[static_cast<size_t>(count++)] = {const_cast<std::byte*>(it.data.data()) + sent,
                                             it.data.size() - sent};
      msghdr message = {};
      message.msg_iov = parts.data();
      message.msg_iovlen = static_cast<size_t>(count);
      const ssize_t done = ::sendmsg(peers_[other].get(), &message, MSG_NOSIGNAL);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EAGAIN) return false;
      if (done < 0) broken(other);
      it.done += static_cast<size_t>(done);
    }
    sending_[other].reset();
    return true;
  }

  bool advance_receiving(size_t other) {
    Receiving& it = *receiving_[other];
    while (it.done < it.all()) {
      const bool in_head = it.done < sizeof(Head);
      const std::span<std::byte> room = in_head ? tcp::room_of(it.head).subspan(it.done)
                                                : it.room.subspan(it.done - sizeof(Head));
      const ssize_t got = ::recv(peers_[other].get(), room.data(), room.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return false;
      if (got <= 0) broken(other);
      it.done += static_cast<size_t>(got);
      if (in_head && it.done >= sizeof(Head)) check(other, it);
    }
    receiving_[other].reset();
    return true;
  }

  void check(size_t other, const Receiving& it) {
    if (it.head == it.expected) return;
    if (it.head.operation != it.expected.operation || it.head.number != it.expected.number) {
      watch_.end(fmt::format(
          "rank {} is at {} (its operation {}) where this one is at {} (operation {}): the ranks "
          "disagree",
          other, name_of(it.head.operation), it.head.number, name_of(it.expected.operation),
          it.expected.number));
    }
    watch_.end(fmt::format("got {} bytes from rank {} where {} were expected: the ranks disagree",
                           it.head.bytes, other, it.expected.bytes));
  }

  [[noreturn]] void broken(size_t other) {
    watch_.lost(
        fmt::format("the connection with rank {} broke: its process ended, or its host "
                    "cannot be reached",
                    other));
  }

  [[noreturn]] void silent(Operation operation, double waited) {
    std::vector<size_t> ranks;
    for (size_t other = 0; other < peers_.size(); ++other) {
      if (receiving_[other] || sending_[other]) ranks.push_back(other);
    }
    watch_.end(
        fmt::format("waited {:.1f} s for {} with rank {}, longer than allowed: another rank hangs "
                    "or does something else",
                    waited, name_of(operation), fmt::join(ranks, ", ")));
  }

  int rank_, size_;
  double timeout_;
  bool patient_ = false;
  uint32_t number_ = 0;
  std::vector<FileDescriptor> peers_;  // by rank
  std::vector<std::optional<Sending>> sending_;
  std::vector<std::optional<Receiving>> receiving_;
  std::vector<pollfd> waits_;
  tcp::Watch watch_;
};

}  // namespace

std::unique_ptr<Collectives> make_tcp_collectives(const tcp::Meeting& meeting,
                                                  double timeout_seconds) {
  return std::make_unique<TcpCollectives>(meeting, timeout_seconds);
}

}  // namespace gnomon
