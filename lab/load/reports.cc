#include "lab/load/reports.h"

#include <fmt/format.h>
#include <poll.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstring>

#include "base/errors.h"
#include "lab/load/wire.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"

namespace gnomon::bench {
namespace {

std::vector<size_t> places_after(const std::string& text, const std::string& key) {
  std::vector<size_t> places;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    places.push_back(at + key.size());
  }
  return places;
}

// Every step that was acknowledged is on record.
void check_ledger(BenchDaemon& daemon, const std::vector<std::string>& runs,
                  const std::vector<int64_t>& acknowledged) {
  HttpClient client = daemon.client();
  for (size_t i = 0; i < runs.size(); ++i) {
    const boost::json::value run =
        boost::json::parse(client.checked("GET", fmt::format("/v1/runs/{}", runs[i])).body);
    const int64_t newest = run.at("step").is_null() ? kFirstStep : run.at("step").as_int64();
    if (newest < acknowledged[i]) {
      throw Error(fmt::format("{} has step {} on record; {} was acknowledged", runs[i], newest,
                              acknowledged[i]));
    }
  }
}

}  // namespace

Fingerprint bench_fingerprint() { return {"bench", "cpu", "none 1.0", "bench", 1, 1}; }

StepReport bench_step(int64_t step) {
  StepReport report;
  report.step = step;
  report.plan_version = 1;
  report.loss = 3.1415926;
  report.grad_norm = 0.7071067811865476;
  report.learning_rate = 2.9999e-4;
  report.tokens = 524288;
  report.step_seconds = 0.8123;
  report.weights_hash = fmt::format("{:016x}", step);
  report.batch_hash = fmt::format("{:016x}", ~static_cast<uint64_t>(step));
  report.time = 1763823456.25;
  return report;
}

std::string register_run(HttpClient& client, const std::string& name, int64_t checkpoint_every) {
  RunRegistration registration;
  registration.name = name;
  registration.job_id = "bench";
  registration.fingerprint = bench_fingerprint();
  PrecisionPlan plan = PrecisionPlan::fp8();
  plan.version = 1;
  registration.base_plan = plan.to_toml();
  registration.layers = 24;
  for (int layer = 0; layer < registration.layers; ++layer) {
    for (const char* site : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      registration.sites.push_back(fmt::format("model.layers.{}.{}", layer, site));
    }
  }
  registration.sites.emplace_back("lm_head");
  registration.total_steps = 2 * kFirstStep;
  registration.tokens_per_step = 524288;
  registration.checkpoint_every = checkpoint_every;
  std::string run =
      from_json<RunRegistered>(client.checked("POST", "/v1/runs", to_json(registration)).body).run;
  AttemptStart attempt;
  attempt.attempt = 1;
  attempt.base_step = kFirstStep;
  attempt.cause = "start";
  attempt.plan_version = 1;
  client.checked("POST", fmt::format("/v1/runs/{}/attempts", run), to_json(attempt));
  return run;
}

StepBodies::StepBodies(int steps) : steps_(steps) {
  StepBatch batch;
  for (int i = 0; i < steps; ++i) batch.steps.push_back(bench_step(kFirstStep + i));
  text_ = to_json(batch);
  step_digits_ = places_after(text_, "\"step\":");
  hash_digits_ = places_after(text_, "\"weights_hash\":\"");
  GNOMON_ASSERT(std::ssize(step_digits_) == steps && std::ssize(hash_digits_) == steps);
}

std::string_view StepBodies::from(int64_t first) {
  char digits[24];
  for (int i = 0; i < steps_; ++i) {
    const auto at = static_cast<size_t>(i);
    fmt::format_to_n(digits, sizeof digits, "{:09d}", first + i);
    std::memcpy(text_.data() + step_digits_[at], digits, 9);
    fmt::format_to_n(digits, sizeof digits, "{:016x}", first + i);
    std::memcpy(text_.data() + hash_digits_[at], digits, 16);
  }
  return text_;
}

Reporters::Reporters(BenchDaemon& daemon, int connections, int steps_of_a_batch)
    : daemon_(daemon),
      steps_(steps_of_a_batch),
      acknowledged_(static_cast<size_t>(connections), kFirstStep),
      bodies_(steps_of_a_batch) {
  HttpClient client = daemon.client();
  for (int i = 0; i < connections; ++i) {
    runs_.push_back(register_run(client, fmt::format("reports-{}-{}", steps_, i)));
    paths_.push_back(fmt::format("/v1/runs/{}/steps", runs_.back()));
  }
}

ReportRate Reporters::load(double warm_seconds, double seconds) {
  // What an earlier load sent and saw no answer to is sent again, as a trainer does.
  std::vector<int64_t> sent = acknowledged_;
  std::string refusal;
  Load closed{.port = daemon_.port(),
              .tls = daemon_.tls(),
              .connections = static_cast<int>(std::ssize(runs_)),
              .warm_seconds = warm_seconds,
              .seconds = seconds,
              .next =
                  [&](int connection, std::string& request) {
                    const auto at = static_cast<size_t>(connection);
                    acknowledged_[at] = sent[at];
                    append_post(paths_[at], bodies_.from(sent[at] + 1), request);
                    sent[at] += steps_;
                  },
              .answered =
                  [&](int, int status, std::string_view body) {
                    if (status / 100 == 2 || !refusal.empty()) return;
                    refusal = fmt::format("{}: {}", status, body);
                  }};
  const double cpu = daemon_.process().cpu_seconds();
  ReportRate rate;
  rate.load = run_load(closed);
  rate.daemon_cpu_seconds = daemon_.process().cpu_seconds() - cpu;
  if (rate.load.failures > 0) {
    throw Error(
        fmt::format("{} reports were refused, the first one with {}", rate.load.failures, refusal));
  }
  check_ledger(daemon_, runs_, acknowledged_);
  rate.steps_per_second = rate.load.per_second() * steps_;
  return rate;
}

ReportRate measure_reports(BenchDaemon& daemon, const ReportLoad& load) {
  return Reporters(daemon, load.connections, load.steps).load(load.warm_seconds, load.seconds);
}

ConnectionRate measure_tls_connections(BenchDaemon& daemon, double seconds) {
  const TlsContext tls = daemon.tls();
  const double cpu = daemon.process().cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  ConnectionRate rate;
  double passed = 0;
  for (; passed < seconds; ++rate.connections) {
    Wire wire(daemon.port(), tls);
    wire.send("GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    std::string answer;
    pollfd readable{wire.descriptor(), POLLIN, 0};
    while (answer.find("\"live\"") == std::string::npos) {
      if (!wire.receive(answer)) ::poll(&readable, 1, 1000);
    }
    passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  rate.per_second = static_cast<double>(rate.connections) / passed;
  rate.daemon_cpu_seconds = daemon.process().cpu_seconds() - cpu;
  return rate;
}

}  // namespace gnomon::bench
