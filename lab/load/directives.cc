#include "lab/load/directives.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "lab/load/reports.h"
#include "lab/load/results.h"
#include "protocol/json.h"

namespace gnomon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDirectiveWindow = 5;
constexpr double kDirectiveGap = 0.2;  // nats
constexpr auto kDirectivePatience = std::chrono::seconds(120);
constexpr int kResultsMax = 200;  // of a run, before it is given up

// A run whose first window is complete, and what its trainer and its verifiers see.
struct Subject {
  std::string run, path;
  int64_t next_step = kFirstStep + 2 * kDirectiveWindow + 1;
  Clock::time_point last_result, arrived;
  bool has_directive = false;
};

class DirectiveRun {
 public:
  DirectiveRun(BenchDaemon& daemon, const DirectiveLoad& load)
      : daemon_(daemon), load_(load), subjects_(static_cast<size_t>(load.runs)) {
    HttpClient client = daemon_.client();
    StepBodies bodies(2 * kDirectiveWindow);
    for (size_t i = 0; i < subjects_.size(); ++i) {
      Subject& subject = subjects_[i];
      subject.run =
          register_run(client, fmt::format("directives-{}-{}", load.interval, i), kDirectiveWindow);
      subject.path = fmt::format("/v1/runs/{}", subject.run);
      client.checked("POST", subject.path + "/steps", std::string(bodies.from(kFirstStep + 1)));
      by_run_[subject.run] = &subject;
    }
  }

  DirectiveTimes run() {
    std::thread reports([this] { report(); });
    std::vector<std::thread> trainers;
    for (Subject& subject : subjects_) {
      trainers.emplace_back([this, &subject] { wait_for_directive(subject); });
    }
    std::string failure;
    try {
      for (Subject& subject : subjects_) provoke(subject);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    for (std::thread& trainer : trainers) trainer.join();
    stop_ = true;
    reports.join();
    if (!failure.empty()) throw Error(failure);
    for (const Subject& subject : subjects_) {
      if (!subject.has_directive) throw Error("no directive came for " + subject.run);
      times_.directives.add(
          std::chrono::duration<double>(subject.arrived - subject.last_result).count());
    }
    return std::move(times_);
  }

 private:
  // The checkpoints of one run, and results until it has its directive: the last one sent before
  // it came is what it follows from.
  void provoke(Subject& subject) {
    HttpClient client = daemon_.client();
    for (const int64_t step :
         {kFirstStep, kFirstStep + kDirectiveWindow, kFirstStep + 2 * kDirectiveWindow}) {
      client.checked("POST", subject.path + "/checkpoints", to_json(checkpoint_at(step)));
    }
    for (int i = 0; i < kResultsMax; ++i) {
      if (arrived(subject)) return;
      const HttpResponse answer =
          client.checked("POST", "/v1/leases?wait=0.05",
                         to_json(LeaseRequest{"bench:verifier", bench_fingerprint()}));
      if (answer.status == 204) continue;
      const Lease lease = from_json<Lease>(answer.body);
      const std::string path = fmt::format("/v1/leases/{}", lease.lease);
      const Clock::time_point before = Clock::now();
      client.checked("POST", path + "/heartbeat", to_json(LeaseHeartbeat{lease.token, 1}));
      times_.heartbeats.add(seconds_since(before));
      Subject& owner = *by_run_.at(lease.task.run);
      {
        const std::lock_guard lock(mutex_);
        if (!owner.has_directive) owner.last_result = Clock::now();
      }
      client.checked("POST", path + "/complete", to_json(result_of(lease, kDirectiveGap)));
    }
    throw Error(fmt::format("{} results led to no directive for {}", kResultsMax, subject.run));
  }

  bool arrived(const Subject& subject) {
    const std::lock_guard lock(mutex_);
    return subject.has_directive;
  }

  void wait_for_directive(Subject& subject) {
    HttpClient client = daemon_.client();
    const Clock::time_point end = Clock::now() + kDirectivePatience;
    while (Clock::now() < end && !stop_) {
      const HttpResponse answer = client.request(
          "GET", subject.path + "/directives?after=0&wait=30s", {}, kDirectivePatience);
      const Clock::time_point now = Clock::now();
      if (answer.status != 200 || from_json<DirectiveList>(answer.body).directives.empty()) {
        continue;
      }
      const std::lock_guard lock(mutex_);
      subject.arrived = now;
      subject.has_directive = true;
      return;
    }
  }

  void report() {
    StepBodies bodies(1);
    Load load{.port = daemon_.port(),
              .connections = load_.runs,
              .warm_seconds = 0,
              .interval = load_.interval,
              .stop = &stop_,
              .next = [&](int connection, std::string& request) {
                Subject& subject = subjects_[static_cast<size_t>(connection)];
                append_post(subject.path + "/steps", bodies.from(subject.next_step++), request);
              }};
    times_.reports_per_second = run_load(load).per_second();
  }

  BenchDaemon& daemon_;
  DirectiveLoad load_;
  std::vector<Subject> subjects_;
  std::map<std::string, Subject*> by_run_;
  std::mutex mutex_;
  std::atomic<bool> stop_{false};
  DirectiveTimes times_;
};

}  // namespace

std::string directive_policy() {
  return fmt::format(
      "mode = \"enforce\"\n[window]\nevery = {0}\nsteps = {0}\n[instrument]\nevery = 0\n"
      "[triage]\npairs = 0\n[attribution]\nscores = false\n",
      kDirectiveWindow);
}

DirectiveTimes measure_directives(BenchDaemon& daemon, const DirectiveLoad& load) {
  return DirectiveRun(daemon, load).run();
}

}  // namespace gnomon::bench
