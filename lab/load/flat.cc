#include "lab/load/flat.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <map>

#include "base/errors.h"
#include "lab/load/load_client.h"
#include "lab/load/reports.h"
#include "lab/load/results.h"
#include "protocol/json.h"

namespace gnomon::bench {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kFlatWindow = 50;
constexpr int64_t kUnitSteps = 500;
constexpr int64_t kUnitNotices = 5;

// A run with a history that can be made longer.
class History {
 public:
  explicit History(const BenchDaemon& daemon)
      : client_(daemon.client()),
        bodies_(kFlatWindow),
        run_(register_run(client_, "flat", kFlatWindow)) {
    checkpoint();
  }

  HttpClient& client() { return client_; }
  std::string path(const std::string& rest) const {
    return fmt::format("/v1/runs/{}{}", run_, rest);
  }

  void grow() {
    for (int64_t i = 0; i < kUnitSteps / kFlatWindow; ++i) {
      client_.checked("POST", path("/steps"), std::string(bodies_.from(step_ + 1)));
      step_ += kFlatWindow;
      checkpoint();
      while (replay()) {
      }
    }
    for (int64_t i = 0; i < kUnitNotices; ++i) notice();
    statistics();
    override_mode();
  }

  // One of each report, at the end of the history.
  void step() {
    StepBatch batch{{bench_step(++step_)}};
    client_.checked("POST", path("/steps"), to_json(batch));
  }
  void checkpoint() {
    client_.checked("POST", path("/checkpoints"), to_json(checkpoint_at(step_)));
  }
  void notice() {
    TrainerNotice notice;
    notice.attempt = 1;
    notice.step = step_;
    notice.kind = "reports_dropped";
    notice.text = fmt::format("notice {}", ++notices_);
    client_.checked("POST", path("/notices"), to_json(notice));
  }
  void statistics() {
    StatisticsReport report;
    report.step = step_;
    report.plan_version = 1;
    StatisticsRow row;
    row.site = "lm_head";
    row.tensor = "input";
    row.elements = 1024;
    report.rows.push_back(row);
    client_.checked("POST", path("/statistics"), to_json(report));
  }
  void override_mode() {
    OverrideRequest request;
    request.kind = "mode";
    request.mode = "observe";
    request.owner = request.reason = "bench";
    request.expires_seconds = 1000;
    client_.checked("POST", path("/overrides"), to_json(request));
  }
  // True when there was one. What each request of it took is added to `times`.
  bool replay(std::map<std::string, Latencies>* times = nullptr) {
    const auto post = [&](const char* operation, const std::string& path, const std::string& body) {
      const Clock::time_point start = Clock::now();
      HttpResponse answer = client_.checked("POST", path, body);
      if (times != nullptr) (*times)[operation].add(seconds_since(start));
      return answer;
    };
    const HttpResponse answer = post("POST /v1/leases", "/v1/leases",
                                     to_json(LeaseRequest{"bench:verifier", bench_fingerprint()}));
    if (answer.status == 204) return false;
    const Lease lease = from_json<Lease>(answer.body);
    const std::string path = fmt::format("/v1/leases/{}", lease.lease);
    post("POST .../heartbeat", path + "/heartbeat", to_json(LeaseHeartbeat{lease.token, 1}));
    post("POST .../complete", path + "/complete", to_json(result_of(lease, kHealthyGap)));
    return true;
  }
  // Steps and a checkpoint that open a window.
  void to_next_window(std::map<std::string, Latencies>& times) {
    while (step_ % kFlatWindow != 0) step();
    Clock::time_point start = Clock::now();
    client_.checked("POST", path("/steps"), std::string(bodies_.from(step_ + 1)));
    times["POST .../steps, 50 of them"].add(seconds_since(start));
    step_ += kFlatWindow;
    start = Clock::now();
    checkpoint();
    times["POST .../checkpoints, opens a window"].add(seconds_since(start));
  }

 private:
  HttpClient client_;
  StepBodies bodies_;
  std::string run_;
  int64_t step_ = kFirstStep;
  int64_t notices_ = 0;
};

// What asks for 50 rows where a list has a bound.
std::string page_of(const json::value& document, const json::array& parameters) {
  for (const json::value& given : parameters) {
    const json::value* link = given.as_object().if_contains("$ref");
    const json::value& parameter =
        link == nullptr ? given
                        : document.at_pointer(std::string_view(link->as_string()).substr(1));
    const std::string name(parameter.at("name").as_string());
    if (name == "limit" || name == "newest") return fmt::format("?{}=50", name);
  }
  return {};
}

// The targets of all GETs of the document but the stream, which does not end, by their paths.
std::map<std::string, std::string> get_targets(History& history) {
  const json::value document = json::parse(history.client().checked("GET", "/openapi.json").body);
  std::map<std::string, std::string> targets;
  for (const auto& [key, operations] : document.at("paths").as_object()) {
    const std::string path(key);
    const json::object& of = operations.as_object();
    if (!of.contains("get") || path == "/v1/events") continue;
    std::string target = path;
    if (const size_t at = target.find("{run}"); at != std::string::npos) {
      target = history.path(target.substr(at + 5));
    }
    const json::value* parameters = of.at("get").as_object().if_contains("parameters");
    if (parameters != nullptr) target += page_of(document, parameters->as_array());
    targets[fmt::format("GET {}", path)] = target;
  }
  return targets;
}

double median_of(int calls, const std::function<void()>& call) {
  Latencies times;
  for (int i = 0; i < calls; ++i) {
    const Clock::time_point start = Clock::now();
    call();
    times.add(seconds_since(start));
  }
  return times.quantile(0.5);
}

// Medians by operation.
std::map<std::string, double> measure(History& history, int calls) {
  std::map<std::string, double> costs;
  for (const auto& target : get_targets(history)) {
    costs[target.first] = median_of(calls, [&] {
      history.client().checked("GET", target.second, {}, std::chrono::minutes(1));
    });
  }
  costs["POST .../steps"] = median_of(calls, [&] { history.step(); });
  costs["POST .../notices"] = median_of(calls, [&] { history.notice(); });
  costs["POST .../statistics, and a step"] = median_of(calls, [&] {
    history.step();
    history.statistics();
  });
  costs["POST .../overrides"] = median_of(calls, [&] { history.override_mode(); });
  costs["POST /v1/leases, nothing to do"] = median_of(calls, [&] { history.replay(); });
  std::map<std::string, Latencies> of_windows;
  for (int i = 0; i < calls; ++i) {
    history.to_next_window(of_windows);
    while (history.replay(&of_windows)) {
    }
  }
  for (const auto& [operation, times] : of_windows) costs[operation] = times.quantile(0.5);
  return costs;
}

}  // namespace

std::vector<FlatCost> measure_flat(const std::string& gnomond, const std::filesystem::path& folder,
                                   const FlatLoad& load,
                                   const std::function<void(int64_t units)>& progress) {
  BenchDaemon daemon(
      gnomond, folder,
      fmt::format("mode = \"enforce\"\n[window]\nevery = {0}\nsteps = {0}\n", kFlatWindow));
  History history(daemon);
  int64_t units = 0;
  const auto grow_to = [&](int64_t wanted) {
    for (; units < wanted; progress(units)) {
      history.grow();
      ++units;
    }
  };
  grow_to(load.units);
  measure(history, load.calls);  // the first calls prepare statements
  const std::map<std::string, double> first = measure(history, load.calls);
  grow_to(static_cast<int64_t>(load.units) * load.factor);
  const std::map<std::string, double> last = measure(history, load.calls);
  std::vector<FlatCost> costs;
  costs.reserve(first.size());
  for (const auto& [operation, seconds] : first) {
    costs.push_back({operation, seconds, last.at(operation)});
  }
  return costs;
}

}  // namespace gnomon::bench
