#include "lab/load/many.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "base/files.h"
#include "lab/load/reports.h"
#include "lab/load/results.h"
#include "protocol/json.h"

namespace gnomon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRound = 160;  // steps from one checkpoint to the next
constexpr int64_t kWindowEvery = 800;
constexpr int kTrainerConnections = 32;

// The first refusal of many.
class Refusals {
 public:
  void see(int status, std::string_view body) {
    if (status / 100 == 2) return;
    const std::lock_guard lock(mutex_);
    if (first_.empty()) first_ = fmt::format("{}: {}", status, body);
  }
  void check() const {
    const std::lock_guard lock(mutex_);
    if (!first_.empty()) throw Error("refused: " + first_);
  }

 private:
  mutable std::mutex mutex_;
  std::string first_;
};

// Steps and checkpoints of all runs, round by round, so that they go on side by side.
class Trainers {
 public:
  Trainers(const std::vector<std::string>& runs, int64_t steps, Refusals& refusals)
      : refusals_(refusals), rounds_(steps / kRound), bodies_(kRound) {
    for (const std::string& run : runs) paths_.push_back(fmt::format("/v1/runs/{}", run));
    at_.resize(kTrainerConnections);
    for (size_t i = 0; i < at_.size(); ++i) at_[i].run = i;
  }

  void run(int port) {
    Load load{.port = port,
              .connections = kTrainerConnections,
              .warm_seconds = 0,
              .patient = true,
              .stop = &done_,
              .next = [this](int connection, std::string& request) { next(connection, request); },
              .answered = [this](int, int status,
                                 std::string_view body) { refusals_.see(status, body); }};
    put_off_ = run_load(load).put_off;
  }
  int64_t steps() const { return steps_; }
  int64_t put_off() const { return put_off_; }

 private:
  struct Place {
    size_t run = 0;
    int64_t round = 0;
    bool checkpoint = true;  // the one of the round's beginning comes first
    bool ended = false;
  };

  // Each connection has every so manieth run.
  void next(int connection, std::string& request) {
    Place& at = at_[static_cast<size_t>(connection)];
    if (at.run >= paths_.size()) {
      at.run = static_cast<size_t>(connection);
      ++at.round;
    }
    if (at.round > rounds_ || at.run >= paths_.size()) return rest(at, request);
    const int64_t step = kFirstStep + at.round * kRound;
    if (at.checkpoint) {
      append_post(paths_[at.run] + "/checkpoints", to_json(checkpoint_at(step)), request);
      at.checkpoint = at.round == rounds_;
      if (at.checkpoint) at.run += kTrainerConnections;
      return;
    }
    append_post(paths_[at.run] + "/steps", bodies_.from(step + 1), request);
    steps_ += kRound;
    at.checkpoint = true;
    at.run += kTrainerConnections;
  }

  // All was answered; the others may not have come so far.
  void rest(Place& at, std::string& request) {
    if (!at.ended && ++ended_ == kTrainerConnections) done_ = true;
    at.ended = true;
    request = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }

  Refusals& refusals_;
  int64_t rounds_;
  StepBodies bodies_;
  std::vector<std::string> paths_;
  std::vector<Place> at_;
  int ended_ = 0;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> put_off_{0};
};

// Each asks, waits, and answers what it is given at once.
class Verifiers {
 public:
  Verifiers(int port, int count, Refusals& refusals)
      : answers_(static_cast<size_t>(count)), thread_([this, port, count, &refusals] {
          Load load{.port = port,
                    .connections = count,
                    .warm_seconds = 0,
                    .patient = true,
                    .stop = &stop_,
                    .next = [this](int c, std::string& request) { next(c, request); },
                    .answered =
                        [this, &refusals](int c, int status, std::string_view body) {
                          refusals.see(status, body);
                          if (body.starts_with("{\"lease\"")) handle_lease(c, body);
                        }};
          try {
            put_off_ = run_load(load).put_off;
          } catch (const Error& error) {
            refusals.see(0, error.what());
          }
        }) {}
  ~Verifiers() { stop(); }
  Verifiers(const Verifiers&) = delete;
  Verifiers& operator=(const Verifiers&) = delete;

  int64_t asked() const { return asked_; }
  // How many of their requests were put off.
  int64_t stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return put_off_;
  }

 private:
  void next(int connection, std::string& request) {
    std::string& answer = answers_[static_cast<size_t>(connection)];
    if (answer.empty()) {
      LeaseRequest ask{fmt::format("bench:{}", connection), bench_fingerprint()};
      ask.labels = {{"host", fmt::format("host-{}", connection / 8)}, {"pool", "bench"}};
      append_post("/v1/leases?wait=120", to_json(ask), request);
      ++asked_;
      return;
    }
    request.swap(answer);
    answer.clear();
  }
  void handle_lease(int connection, std::string_view body) {
    const Lease lease = from_json<Lease>(body);
    append_post(fmt::format("/v1/leases/{}/complete", lease.lease),
                to_json(result_of(lease, kHealthyGap)), answers_[static_cast<size_t>(connection)]);
  }

  std::vector<std::string> answers_;
  std::atomic<int64_t> asked_{0};
  std::atomic<int64_t> put_off_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A scrape now and then until it goes.
class Scraper {
 public:
  explicit Scraper(const BenchDaemon& daemon)
      : thread_([this, &daemon] {
          HttpClient client = daemon.client();
          while (!stop_) {
            bytes_ = scrape(client, times_);
            std::this_thread::sleep_for(std::chrono::seconds(1));
          }
        }) {}
  ~Scraper() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;

  static int64_t scrape(HttpClient& client, Latencies& times) {
    const Clock::time_point start = Clock::now();
    const auto size =
        std::ssize(client.checked("GET", "/metrics", {}, std::chrono::minutes(1)).body);
    times.add(seconds_since(start));
    return size;
  }
  Latencies stop() {
    stop_ = true;
    thread_.join();
    return std::move(times_);
  }

 private:
  std::atomic<bool> stop_{false};
  Latencies times_;
  int64_t bytes_ = 0;
  std::thread thread_;
};

double sample(HttpClient& client, const std::string& name) {
  const std::string text = client.checked("GET", "/metrics", {}, std::chrono::minutes(1)).body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

void wait_for_last_results(HttpClient& client) {
  const bool ended = eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return sample(client, "gnomon_replays_queued") == 0 &&
           sample(client, "gnomon_leases_active") == 0;
  });
  if (!ended) throw Error("replays are left that nobody did");
}

int64_t closed_windows(HttpClient& client, const std::vector<std::string>& runs) {
  int64_t windows = 0;
  for (const std::string& run : runs) {
    const boost::json::value answer =
        boost::json::parse(client.checked("GET", fmt::format("/v1/runs/{}/windows", run)).body);
    for (const boost::json::value& window : answer.as_array()) {
      windows += window.at("state").as_string() == "quiet" ? 1 : 0;
    }
  }
  return windows;
}

// As many connections as the load has need of descriptors here too.
void raise_own_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::string many_policy() {
  return fmt::format("mode = \"enforce\"\n[window]\nevery = {}\nsteps = {}\n", kWindowEvery,
                     kRound);
}

ManyResult measure_many(const std::string& gnomond, const std::filesystem::path& folder,
                        const ManyLoad& load,
                        const std::function<void(int64_t steps, const char* what)>& progress) {
  raise_own_limit();
  write_file_atomically(folder / "gnomond.toml",
                        fmt::format("[limits]\nconnections = {}\n", load.verifiers + 200));
  BenchDaemon daemon(gnomond, folder, many_policy(),
                     {"--config", (folder / "gnomond.toml").string()});
  HttpClient client = daemon.client();
  std::vector<std::string> runs;
  for (int i = 0; i < load.runs; ++i) {
    runs.push_back(register_run(client, fmt::format("many-{}", i), kRound));
    progress(0, "registering runs");
  }
  ManyResult result;
  Refusals refusals;
  {
    Verifiers verifiers(daemon.port(), load.verifiers, refusals);
    if (!eventually([&] { return verifiers.asked() >= load.verifiers; })) {
      throw Error(fmt::format("{} of {} verifiers had asked after a minute", verifiers.asked(),
                              load.verifiers));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
    result.idle = daemon.process().memory();
    const double cpu = daemon.process().cpu_seconds();
    const Clock::time_point start = Clock::now();
    Trainers trainers(runs, load.steps, refusals);
    Scraper scraper(daemon);
    auto reporting = std::async(std::launch::async, [&] { trainers.run(daemon.port()); });
    while (reporting.wait_for(std::chrono::milliseconds(500)) != std::future_status::ready) {
      progress(trainers.steps(), "steps reported");
    }
    reporting.get();
    result.seconds = seconds_since(start);
    result.cpu_seconds = daemon.process().cpu_seconds() - cpu;
    result.scrapes = scraper.stop();
    result.steps = trainers.steps();
    wait_for_last_results(client);
    for (int i = 0; i < 5; ++i) result.scrape_bytes = Scraper::scrape(client, result.idle_scrapes);
    result.memory = daemon.process().memory();
    result.put_off = trainers.put_off() + verifiers.stop();
  }
  refusals.check();
  result.windows = closed_windows(client, runs);
  daemon.process().stop();
  result.ledger_bytes = static_cast<int64_t>(std::filesystem::file_size(daemon.ledger()));
  return result;
}

}  // namespace gnomon::bench
