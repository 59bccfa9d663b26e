#include "lab/load/load_client.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <map>
#include <memory>

#include "base/files.h"
#include "lab/load/wire.h"

namespace gnomon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReconnectAfter{500};  // to twice as long
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLength = "Content-Length: ";

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One answer as its bytes come. Beast writes its headers as they are looked for here.
struct Answer {
  std::string bytes;
  size_t size = 0;  // of head and body; 0 while the head is not there
  size_t head = 0;

  bool complete() {
    if (size == 0) {
      const size_t end = bytes.find(kHeadEnd);
      if (end == std::string::npos) return false;
      head = end + kHeadEnd.size();
      size = head;
      const size_t length = bytes.find(kLength);
      if (length < end) {
        size_t body = 0;
        const char* digits = bytes.data() + length + kLength.size();
        std::from_chars(digits, bytes.data() + end, body);
        size += body;
      }
    }
    return bytes.size() >= size;
  }
  int status() const {
    int value = 0;
    const size_t at = std::string_view("HTTP/1.1 ").size();
    std::from_chars(bytes.data() + at, bytes.data() + at + 3, value);
    return value;
  }
  std::string_view body() const { return std::string_view(bytes).substr(head, size - head); }
  void clear() {
    bytes.clear();
    size = head = 0;
  }
};

struct LoadConnection {
  explicit LoadConnection(const Load& load) : wire(load.port, load.tls) {}
  Wire wire;
  std::string request;
  Answer answer;
  Clock::time_point started;
  bool again = false;  // its request was put off
};

class LoadRun {
 public:
  explicit LoadRun(const Load& load) : load_(load), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (int i = 0; i < load.connections; ++i) connect(i);
  }

  LoadResult run() {
    const Clock::time_point begin = Clock::now();
    // Spread over the first interval.
    for (int i = 0; i < load_.connections; ++i) {
      due_.emplace(begin + in_clock(load_.interval * i / load_.connections), i);
    }
    const Clock::time_point counted = begin + in_clock(load_.warm_seconds);
    const Clock::time_point end = counted + in_clock(load_.seconds);
    std::array<epoll_event, 64> events;
    for (Clock::time_point now = begin; load_.stop != nullptr ? !*load_.stop : now < end;
         now = Clock::now()) {
      if (!counting_ && now >= counted) {
        counting_ = true;
        started_ = now;
      }
      send_due(now);
      const int ready =
          ::epoll_wait(poll_.get(), events.data(), std::ssize(events), load_.interval > 0 ? 1 : 10);
      for (int i = 0; i < ready; ++i) serve(events[static_cast<size_t>(i)]);
    }
    result_.seconds = seconds_between(started_, Clock::now());
    return std::move(result_);
  }

 private:
  static Clock::duration in_clock(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  void connect(int index) {
    auto connection = std::make_unique<LoadConnection>(load_);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(index);
    ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, connection->wire.descriptor(), &event);
    connections_.push_back(std::move(connection));
  }

  void send_due(Clock::time_point now) {
    while (!due_.empty() && due_.begin()->first <= now) {
      const int index = due_.begin()->second;
      due_.erase(due_.begin());
      send_next(index, now);
    }
  }

  void send_next(int index, Clock::time_point now) {
    LoadConnection& connection = *connections_[static_cast<size_t>(index)];
    if (!connection.again) {
      connection.request.clear();
      load_.next(index, connection.request);
      connection.started = now;
    }
    connection.again = false;
    connection.wire.send(connection.request);
  }

  void serve(const epoll_event& event) {
    const auto index = static_cast<int>(event.data.u32);
    LoadConnection& connection = *connections_[event.data.u32];
    if (!connection.wire.receive(connection.answer.bytes)) return;
    if (!connection.answer.complete()) return;
    const Clock::time_point now = Clock::now();
    const int status = connection.answer.status();
    if (status == 503 && load_.patient) {
      ++result_.put_off;
      connection.again = true;
      connection.answer.clear();
      due_.emplace(now + kReconnectAfter + kReconnectAfter * (index % 64) / 64, index);
      return;
    }
    if (load_.answered) load_.answered(index, status, connection.answer.body());
    if (status / 100 != 2) {
      ++result_.failures;
    } else if (counting_) {
      ++result_.requests;
      result_.latencies.add(seconds_between(connection.started, now));
    }
    connection.answer.clear();
    if (load_.interval > 0) {
      due_.emplace(std::max(now, connection.started + in_clock(load_.interval)), index);
    } else {
      send_next(index, now);
    }
  }

  const Load& load_;
  FileDescriptor poll_;
  std::vector<std::unique_ptr<LoadConnection>> connections_;
  std::multimap<Clock::time_point, int> due_;
  bool counting_ = false;
  Clock::time_point started_;
  LoadResult result_;
};

}  // namespace

void Latencies::add(const Latencies& other) {
  seconds_.insert(seconds_.end(), other.seconds_.begin(), other.seconds_.end());
}

double Latencies::quantile(double share) const {
  if (seconds_.empty()) return 0;
  std::vector<double> sorted = seconds_;
  const auto at = static_cast<size_t>(share * static_cast<double>(sorted.size() - 1));
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(at));
  return sorted[at];
}

LoadResult run_load(const Load& load) { return LoadRun(load).run(); }

void append_post(std::string_view path, std::string_view body, std::string& request) {
  fmt::format_to(std::back_inserter(request),
                 "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: {}\r\n\r\n{}",
                 path, body.size(), body);
}

}  // namespace gnomon::bench
