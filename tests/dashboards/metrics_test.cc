// A real Prometheus scrapes a gnomond in which all that has a metric has happened. It then knows
// what docs/metrics.md promises and what the tables in controller/metrics say, and nothing else.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "base/files.h"
#include "controller/metrics/daemon_numbers.h"
#include "controller/metrics/run_numbers.h"
#include "tests/controller/fake_clients.h"
#include "tests/dashboards/prometheus_process.h"
#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"

namespace gnomon::dashboards {
namespace {

using Names = std::set<std::string>;

// "name type labels", as docs/metrics.md has them.
std::string line(const std::string& name, const std::string& type, const Names& labels) {
  return fmt::format("{} {} {{{}}}", name, type, fmt::join(labels, ", "));
}

Names documented() {
  static const std::regex kRow(R"(^\| `(gnomon_[a-z0-9_]+)` \| (\w+) \| ([a-z, ]*) ?\|.*)");
  Names lines;
  std::istringstream document(read_file(std::string(GNOMON_SOURCE) + "/docs/metrics.md"));
  for (std::string row; std::getline(document, row);) {
    std::smatch match;
    if (!std::regex_match(row, match, kRow)) continue;
    static const std::regex kLabel("[a-z]+");
    const std::string list = match[3];
    const std::sregex_token_iterator labels(list.begin(), list.end(), kLabel), end;
    lines.insert(line(match[1], match[2], Names(labels, end)));
  }
  return lines;
}

struct Known {
  Names lines;
  Names helps;  // "name: help"
};

const char* type_name(prometheus::MetricType type) {
  if (type == prometheus::MetricType::Histogram) return "histogram";
  return type == prometheus::MetricType::Counter ? "counter" : "gauge";
}

Known in_code() {
  Known known;
  const auto add = [&](const auto& rows, const Names& common) {
    for (const auto& row : rows) {
      Names labels = common;
      labels.insert(row.labels.begin(), row.labels.end());
      known.lines.insert(line(row.name, type_name(row.type), labels));
      known.helps.insert(row.name + ": " + row.help);
    }
  };
  add(daemon_metrics(), {});
  add(run_metrics(), {"run"});
  return known;
}

Known in_prometheus(PrometheusProcess& prometheus) {
  Known known;
  std::map<std::string, std::string> types;
  const boost::json::value metadata = prometheus.data("targets/metadata");
  for (const boost::json::value& metric : metadata.as_array()) {
    const std::string name(metric.at("metric").as_string());
    types[name] = metric.at("type").as_string();
    known.helps.insert(name + ": " + std::string(metric.at("help").as_string()));
  }
  static const std::regex kOfHistogram("_(bucket|sum|count)$");
  const boost::json::value all =
      prometheus.data("series?match[]=%7B__name__%3D~%22gnomon_.%2B%22%7D");
  for (const boost::json::value& series : all.as_array()) {
    std::string name;
    Names labels;
    for (const auto& [label, value] : series.as_object()) {
      if (label == "__name__") name = value.as_string();
      if (label != "__name__" && label != "job" && label != "instance" && label != "le") {
        labels.insert(label);
      }
    }
    const std::string base = std::regex_replace(name, kOfHistogram, "");
    if (const auto type = types.find(base); type != types.end()) name = base;
    known.lines.insert(line(name, types[name], labels));
  }
  return known;
}

void expect_same(const char* place, const Names& names, const char* other_place,
                 const Names& other_names) {
  const auto only = [](const Names& those, const Names& others) {
    Names left;
    std::ranges::set_difference(those, others, std::inserter(left, left.end()));
    return left;
  };
  EXPECT_THAT(only(names, other_names), ::testing::IsEmpty()) << "only " << place;
  EXPECT_THAT(only(other_names, names), ::testing::IsEmpty()) << "only " << other_place;
}

class EveryMetric : public ::testing::Test {
 protected:
  EveryMetric() {
    authority_.write(folder_ / "ca.pem");
    authority_.issue(folder_.path(), "server");
    // The receiver is told nothing: its series are there all the same.
    write_file_atomically(folder_ / "gnomond.toml",
                          "[tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n"
                          "[[notify]]\nname = \"nobody\"\nurl = \"http://127.0.0.1:9/\"\n"
                          "kinds = [\"quarantine\"]\n");
    daemon_.speak_tls({.url = {}, .ca_file = (folder_ / "ca.pem").string()});
    daemon_.start();
    const ClientOptions access{.url = daemon_.url(), .ca_file = (folder_ / "ca.pem").string()};
    trainer_.connect(access);
    trainer_.begin();
    trainer_.train(1, 10);
    // Two windows: enough replayed steps for FP8's speed to be measured.
    FakeVerifier verifier(daemon_.url());
    verifier.connect(access);
    while (std::optional<Lease> lease = verifier.lease()) verifier.complete(*lease, 0.001);
    report_statistics();
    const AttemptStart start{2, 10, "restart", 1, 1.0, {}, "host-a"};
    trainer_.client().checked("POST", trainer_.path("/attempts"), to_json(start));
    trainer_.post_steps({{step_of_device(11)}});
  }

  void report_statistics() {
    StatisticsReport looked;
    looked.step = 10;
    StatisticsRow tensor;
    tensor.site = "lm_head";
    tensor.tensor = "input";
    tensor.numbers.fill(0.5);
    StatisticsRow rounding = tensor;
    rounding.gemm = "fprop";
    rounding.recipe = "current";
    rounding.in_use = true;
    looked.rows = {tensor, rounding};
    trainer_.client().checked("POST", trainer_.path("/statistics"), to_json(looked));
  }

  // A step with all that a GPU may say of itself.
  static StepReport step_of_device(int64_t at) {
    DeviceHealth health;
    health.device = "0000:01:00.0";
    for (auto* number :
         {&health.sm_clock_mhz, &health.memory_clock_mhz, &health.power_watts,
          &health.power_limit_watts, &health.temperature_celsius, &health.utilization_percent}) {
      *number = 50;
    }
    health.memory_used_bytes = health.memory_total_bytes = 1'000;
    health.ecc_corrected = health.ecc_uncorrected = 1;
    health.throttle_reasons = std::vector<ThrottleReason>{"idle"};
    health.remapped_rows_pending = health.remapped_rows_failure = false;
    StepReport step = test_step(at, 2);
    step.device_health = health;
    step.cast_saturated = step.cast_flushed = 1e-6;
    step.cast_peak = 1;
    return step;
  }

  test::TemporaryDirectory folder_;
  test::Authority authority_{"an authority"};
  test::DaemonProcess daemon_{{"--config", (folder_ / "gnomond.toml").string()}, test_policy()};
  FakeTrainer trainer_{"http://127.0.0.1"};  // until the daemon has an address
};

TEST_F(EveryMetric, IsReadByPrometheusAsTheTableAndItsDocumentSay) {
  PrometheusProcess prometheus;
  prometheus.start(daemon_.port(), {}, folder_ / "ca.pem");
  const Known code = in_code();
  Known known;
  EXPECT_TRUE(test::eventually([&] {
    known = in_prometheus(prometheus);
    return known.lines == code.lines;
  })) << prometheus.log();
  expect_same("read by Prometheus", known.lines, "in code", code.lines);
  expect_same("read by Prometheus", known.helps, "in code", code.helps);
  expect_same("in docs/metrics.md", documented(), "in code", code.lines);
}

// A metric that lives in the process alone would begin anew: dashboards would show a dip.
TEST_F(EveryMetric, OfARunIsTheSameBehindARestart) {
  const auto of_runs = [&] {
    Names samples;
    std::istringstream text(daemon_.client().checked("GET", "/metrics").body);
    for (std::string sample; std::getline(text, sample);) {
      if (sample.find("{run=\"") != std::string::npos) samples.insert(sample);
    }
    return samples;
  };
  // What costs say follows the state, which is saved with some steps only: a hazard that has
  // changed counts the newest one.
  const auto hazard = [](const Names& samples) {
    return *samples.lower_bound("gnomon_run_hazard_per_step{");
  };
  const std::string first = hazard(of_runs());
  Names before;
  int64_t step = 11;
  EXPECT_TRUE(test::eventually([&] {
    trainer_.post_steps({{step_of_device(++step)}});
    before = of_runs();
    return hazard(before) != first;
  }));
  EXPECT_GT(before.size(), run_metrics().size());
  daemon_.stop();
  daemon_.start();
  expect_same("before the restart", before, "behind it", of_runs());
}

// Ten steps are verified, in windows of five; a restart from the fifth undoes the second window.
TEST_F(EveryMetric, OfWhatARestartHasUndoneIsTakenBack) {
  const auto text = [&] { return daemon_.client().checked("GET", "/metrics").body; };
  const auto summary = [&] {
    return boost::json::parse(trainer_.client().checked("GET", trainer_.path("")).body);
  };
  EXPECT_THAT(text(), HasSubstr("gnomon_run_verified_step{run=\"test/1\"} 10\n"));
  EXPECT_EQ(summary().at("measured_window"), 2);
  const AttemptStart start{3, 5, "restart", 1, 1.0, {}, "host-a"};
  trainer_.client().checked("POST", trainer_.path("/attempts"), to_json(start));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_verified_step{run=\"test/1\"} 5\n"));
  EXPECT_EQ(summary().at("verified_step"), 5);
  EXPECT_EQ(summary().at("measured_window"), 1);
  daemon_.stop();
  daemon_.start();
  EXPECT_THAT(text(), HasSubstr("gnomon_run_verified_step{run=\"test/1\"} 5\n"));
}

TEST_F(EveryMetric, PassesPromtool) {
  const std::string folder = folder_.path().string();
  write_file_atomically(folder_ / "metrics.txt", daemon_.client().checked("GET", "/metrics").body);
  const std::string command =
      fmt::format("{} check metrics < {}/metrics.txt > {}/verdict 2>&1", PROMTOOL, folder, folder);
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << read_file(folder_ / "verdict");
}

}  // namespace
}  // namespace gnomon::dashboards
