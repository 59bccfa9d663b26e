// A real Prometheus scrapes a real gnomond while a small run trains and is verified: every query of
// every panel of the dashboard must return at least one series.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/files.h"
#include "protocol/client.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "tests/dashboards/dashboard.h"
#include "tests/dashboards/prometheus_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/standin_gpu.h"
#include "tests/trainer/tiny_run.h"

namespace gnomon::dashboards {
namespace {

using test::ChildProcess;
using test::eventually;

class LivePanels : public ::testing::Test {
 protected:
  void SetUp() override {
    test::make_tiny_dataset(folder_ / "data");
    daemon_.start();
    prometheus_.start(daemon_.port());
  }

  std::string file(const std::string& name) { return (folder_ / name).string(); }

  std::vector<std::string> process(const std::string& kind) {
    if (kind == "verifier")
      return {GNOMON_VERIFIER, "--controller", daemon_.url(), "--threads", "1"};
    std::filesystem::path config = test::write_tiny_config(folder_.path(), folder_ / "data", 6000,
                                                           "[statistics]\nevery = 20\n");
    std::string text = read_file(config);
    text.insert(text.find("[run]\n") + 6, fmt::format("watch_gpu = \"{}\"\n", gpu_.kBusId));
    write_file_atomically(config, text);
    return {GNOMON_TRAINER, "--config", config.string(), "--controller",
            daemon_.url(),  "--dir",    file("run")};
  }

  // From steps in both precisions FP8's speed is measured.
  void train_in_bf16() {
    OverrideRequest order;
    order.kind = "set_plan";
    order.plan = PrecisionPlan::bf16().to_toml();
    order.owner = "test";
    order.reason = "to measure FP8's speed";
    order.expires_seconds = 3600;
    daemon_.client().checked("POST", "/v1/runs/run-1/overrides", to_json(order));
  }

  test::TemporaryDirectory folder_;
  test::StandinGpu gpu_;
  test::DaemonProcess daemon_{{},
                              "[window]\nevery = 50\nsteps = 10\nopen_max = 4\n"
                              "[detector]\ntolerance_percent = 50.0\n"};
  PrometheusProcess prometheus_;
};

TEST_F(LivePanels, EveryQueryOfEveryPanelReturnsSeries) {
  ChildProcess verifier(process("verifier"), folder_ / "verifier.log");
  ChildProcess trainer(process("trainer"), folder_ / "trainer.log",
                       {.environment = gpu_.environment()});
  boost::json::object dashboard =
      load_dashboard(std::string(GNOMON_SOURCE) + "/dashboards/grafana/dashboards/run.json");
  const std::map<std::string, std::string> variables = {
      {"job", "gnomon"}, {"instance", ".+"}, {"run", "tiny/7"}, {"__rate_interval", "10s"}};
  std::set<std::string> missing;
  for (const Target& target : targets(dashboard)) {
    // The run decides when a decision is due; the annotation's query must work without one
    // too.
    std::string expr =
        target.expr.ends_with(" > 0") ? target.expr.substr(0, target.expr.size() - 4) : target.expr;
    missing.insert(substitute(expr, variables));
  }
  ASSERT_GT(missing.size(), 20u);
  ASSERT_TRUE(eventually([&] { return prometheus_.series_of("gnomon_run_gap_ratio") > 0; },
                         std::chrono::seconds(60)))
      << trainer.output();
  train_in_bf16();
  bool all = eventually(
      [&] {
        std::erase_if(missing,
                      [&](const std::string& expr) { return prometheus_.series_of(expr) > 0; });
        return missing.empty();
      },
      std::chrono::seconds(150));
  EXPECT_TRUE(all) << "no series for: " << ::testing::PrintToString(missing)
                   << "\ntrainer: " << trainer.output() << "\nverifier: " << verifier.output();
}

}  // namespace
}  // namespace gnomon::dashboards
