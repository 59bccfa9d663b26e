#include "lab/load/waiters.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "base/errors.h"
#include "base/files.h"
#include "lab/load/reports.h"
#include "lab/load/wire.h"
#include "protocol/json.h"

namespace gnomon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kWaitersPatience{60};

// Connections that have sent one request each and read what comes.
class Listeners {
 public:
  explicit Listeners(int port) : port_(port), poll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  void add(const std::string& request) {
    auto wire = std::make_unique<Wire>(port_);
    wire->send(request);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = read_.size();
    ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, wire->descriptor(), &event);
    wires_.push_back(std::move(wire));
    read_.emplace_back();
  }

  // Until so many have read `text`, each from where it was read before. When each had, in seconds
  // from now.
  Latencies wait_for(const std::string& text, size_t count) {
    Latencies times;
    const Clock::time_point start = Clock::now();
    std::array<epoll_event, 256> events;
    while (times.count() < count) {
      if (Clock::now() > start + kWaitersPatience) {
        throw Error(fmt::format("{} of {} clients heard \"{}\"", times.count(), count, text));
      }
      const int ready = ::epoll_wait(poll_.get(), events.data(), std::ssize(events), 100);
      for (int i = 0; i < ready; ++i) {
        const size_t index = events[static_cast<size_t>(i)].data.u64;
        std::string& read = read_[index];
        wires_[index]->receive(read);
        const size_t at = read.find(text);
        if (at == std::string::npos) continue;
        read.erase(0, at + text.size());
        times.add(std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
    return times;
  }

 private:
  int port_;
  FileDescriptor poll_;
  std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<std::string> read_;
};

std::string get(const std::string& path) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
}

// Half of the polls are of verifiers; of the others one alone waits for the first run.
void add_polls(Listeners& polls, int count, const std::vector<std::string>& runs) {
  polls.add(get(fmt::format("/v1/runs/{}/directives?after=0&wait=120", runs[0])));
  for (int i = 1; i < count; ++i) {
    if (i % 2 == 0) {
      std::string request;
      append_post("/v1/leases?wait=120",
                  to_json(LeaseRequest{fmt::format("bench:{}", i), bench_fingerprint()}), request);
      polls.add(request);
    } else {
      const auto other = 1 + static_cast<size_t>(i) % (runs.size() - 1);
      polls.add(get(fmt::format("/v1/runs/{}/directives?after=0&wait=120", runs[other])));
    }
  }
}

// Has them served before the next look at the daemon.
void settle() { std::this_thread::sleep_for(std::chrono::seconds(2)); }

}  // namespace

WaitersResult measure_waiters(const std::string& gnomond, const std::filesystem::path& folder,
                              const WaitersLoad& load) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const int clients = load.streams + load.polls;
  write_file_atomically(folder / "gnomond.toml",
                        fmt::format("[limits]\nconnections = {}\n", clients + 100));
  BenchDaemon daemon(gnomond, folder, "mode = \"observe\"\n",
                     {"--config", (folder / "gnomond.toml").string()});
  HttpClient client = daemon.client();
  std::vector<std::string> runs;
  runs.reserve(100);
  for (int i = 0; i < 100; ++i) runs.push_back(register_run(client, fmt::format("waited-{}", i)));
  settle();
  const int64_t before = daemon.process().memory().now;
  Listeners streams(daemon.port()), polls(daemon.port());
  for (int i = 0; i < load.streams; ++i) streams.add(get("/v1/events"));
  streams.wait_for("retry:", static_cast<size_t>(load.streams));
  add_polls(polls, load.polls, runs);
  settle();
  WaitersResult result;
  result.bytes_each = static_cast<double>(daemon.process().memory().now - before) / clients;
  const double cpu = daemon.process().cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(load.idle_seconds));
  result.idle_cpu_share = (daemon.process().cpu_seconds() - cpu) / load.idle_seconds;

  TrainerNotice notice;
  notice.attempt = 1;
  notice.kind = "reports_dropped";
  notice.text = "for the benchmark";
  auto told = std::async(std::launch::async, [&] {
    client.checked("POST", fmt::format("/v1/runs/{}/notices", runs[0]), to_json(notice));
  });
  result.event = streams.wait_for("event: notice", static_cast<size_t>(load.streams));
  told.get();
  OverrideRequest pause;
  pause.kind = "pause";
  pause.owner = pause.reason = "bench";
  auto asked = std::async(std::launch::async, [&] {
    client.checked("POST", fmt::format("/v1/runs/{}/overrides", runs[0]), to_json(pause));
  });
  result.directive_seconds = polls.wait_for("\"kind\":\"pause\"", 1).quantile(1);
  asked.get();
  return result;
}

}  // namespace gnomon::bench
