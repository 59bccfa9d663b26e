// What it costs to take runs out of the metrics: the same for each run, however many there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "controller/metrics/metrics.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& action) {
  const auto start = Clock::now();
  action();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<Metrics> with_runs(int64_t runs) {
  auto metrics = std::make_unique<Metrics>([] { return size_t{0}; });
  RunTotals totals;
  for (int layer = 0; layer < 4; ++layer) {
    totals.layers.emplace_back("layers." + std::to_string(layer), 1.0);
  }
  for (int64_t run = 1; run <= runs; ++run) {
    metrics->start_run(run, "run/" + std::to_string(run), totals);
    metrics->update_run(run, [](RunSeries& series) {
      series.step({1, 1, 1, 2.5, 0.5, 1e-3, 100, 0.2, "", 50}, 50);
      DeviceHealth health{"0000:01:00.0"};
      health.power_watts = 500;
      series.device_health("node", health);
    });
  }
  return metrics;
}

// The least of three tries.
double least_of(int64_t runs, const std::function<void(std::unique_ptr<Metrics>&)>& action) {
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    auto metrics = with_runs(runs);
    least = std::min(least, seconds_of([&] { action(metrics); }));
  }
  return least;
}

void expect_linear(const std::string& what,
                   const std::function<void(std::unique_ptr<Metrics>&)>& action) {
  const double few = least_of(500, action);
  const double more = least_of(1000, action);
  const double many = least_of(2000, action);
  std::printf("%s: %.4f s with 500 runs, %.4f s with 1000, %.4f s with 2000\n", what.c_str(), few,
              more, many);
  // Four times as many cost four times as much; sixteen times, if each is searched for.
  EXPECT_LT(many, 9 * few + 0.02) << what;
  EXPECT_LT(many, 2) << what;
}

TEST(SeriesRemoval, TheEndOfTheDaemonIsLinearInItsRuns) {
  expect_linear("the end", [](std::unique_ptr<Metrics>& metrics) { metrics.reset(); });
}

TEST(SeriesRemoval, DroppingEveryRunIsLinear) {
  expect_linear("all dropped", [](std::unique_ptr<Metrics>& metrics) {
    for (int64_t run = 1; run <= 2000; ++run) metrics->drop_run_at(run, 0);
    EXPECT_EQ(metrics->serialize(1).find("gnomon_run_step{"), std::string::npos);
  });
}

TEST(SeriesRemoval, OneRunsRemovalDoesNotLookAtTheOthers) {
  constexpr int64_t kReplaced = 100;
  const auto replace_some = [](std::unique_ptr<Metrics>& metrics) {
    for (int64_t run = 1; run <= kReplaced; ++run) {
      metrics->start_run(run, "run/" + std::to_string(run), {});
    }
  };
  const double few = least_of(200, replace_some);
  const double many = least_of(2000, replace_some);
  std::printf("100 runs replaced: %.4f s among 200, %.4f s among 2000\n", few, many);
  EXPECT_LT(many, 4 * few + 0.02);
}

}  // namespace
}  // namespace gnomon
