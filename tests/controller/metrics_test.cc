#include "controller/metrics/metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "controller/metrics/text_format.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  Metrics metrics;
  std::string text(double now = 0) { return metrics.serialize(now); }
};

StepReport step(int64_t number) { return {{1, number, 7, 2.5, 0.5, 1e-3, 100, 0.2, ""}, 50}; }

TEST_F(MetricsTest, ANewRunShowsItsCountersAtZeroAndNoGaugeWithoutAValue) {
  metrics.start_run(1, "demo/1", {});
  EXPECT_THAT(text(), HasSubstr("gnomon_run_steps_total{run=\"demo/1\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_windows_total{outcome=\"alarm\",run=\"demo/1\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_decisions_total{kind=\"return\",run=\"demo/1\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_state{run=\"demo/1\",state=\"watching\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_state{run=\"demo/1\",state=\"holding\"} 0\n"));
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_loss{")));
  metrics.update([](DaemonNumbers& numbers) { numbers.ledger_queue_length = 3; });
  EXPECT_THAT(text(), HasSubstr("gnomon_ledger_queue_length 3\n"));
}

TEST_F(MetricsTest, StepsAndWindowsMoveTheirSeries) {
  metrics.start_run(1, "demo/1", {});
  metrics.update_run(1, [](RunNumbers& numbers) {
    record_step(numbers, step(40), 50);
    numbers.windows["quiet"] += 1;
    record_window(numbers,
                  decide::CloseWindow{{0.004, 0.008, 0.1, 0.5}, 1, "quiet"});  // nats, nats, %, %
  });
  std::string now = text();
  EXPECT_THAT(now, HasSubstr("gnomon_run_loss{run=\"demo/1\"} 2.5\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_tokens_total{run=\"demo/1\"} 100\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_last_report_timestamp_seconds{run=\"demo/1\"} 50\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_gap_ratio{run=\"demo/1\"} 0.001\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_gap_tolerance_ratio{run=\"demo/1\"} 0.005\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_offset_ratio{run=\"demo/1\"} 0.002\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_windows_total{outcome=\"quiet\",run=\"demo/1\"} 1\n"));
  EXPECT_THAT(now,
              HasSubstr("gnomon_run_step_duration_seconds_bucket{run=\"demo/1\",le=\"0.25\"} 1\n"));
  EXPECT_THAT(now,
              HasSubstr("gnomon_run_step_duration_seconds_bucket{run=\"demo/1\",le=\"0.1\"} 0\n"));
}

TEST_F(MetricsTest, CastsAreThoseOfTheNewestStep) {
  metrics.start_run(1, "demo/1", {});
  StepReport first = step(40);
  first.cast_saturated = 0.25;
  first.cast_flushed = 0.125;
  first.cast_peak = 64;
  metrics.update_run(1, [&](RunNumbers& numbers) { record_step(numbers, first, 50); });
  EXPECT_THAT(text(), HasSubstr("gnomon_run_cast_saturated_ratio{run=\"demo/1\"} 0.25\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_cast_flushed_ratio{run=\"demo/1\"} 0.125\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_cast_peak_ratio{run=\"demo/1\"} 64\n"));
  metrics.update_run(1, [](RunNumbers& numbers) { record_step(numbers, step(41), 60); });
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_cast_peak_ratio{")));
}

TEST_F(MetricsTest, ExactlyOneVerdictIsOneAndAllGoWithTheRun) {
  metrics.start_run(1, "demo/1", {});
  decide::VerdictFacts facts;
  facts.newest_step = 900;
  facts.lag_steps = 860;
  metrics.update_run(1, [&](RunNumbers& numbers) {
    numbers.verdict = decide::VerdictKind::kUnverified;
    numbers.facts = facts;
  });
  int ones = 0;
  for (const decide::VerdictKind kind : decide::kVerdictKinds) {
    const std::string series = fmt::format("gnomon_run_verdict{{run=\"demo/1\",verdict=\"{}\"}} ",
                                           decide::verdict_name(kind));
    EXPECT_THAT(text(), HasSubstr(series));
    ones += text().find(series + "1\n") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(ones, 1);
  EXPECT_THAT(text(), HasSubstr("verdict=\"unverified\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_verification_lag_steps{run=\"demo/1\"} 860\n"));
  metrics.update_run(1, [](RunNumbers& numbers) { numbers.verdict = decide::VerdictKind::kEnded; });
  EXPECT_THAT(text(), HasSubstr("verdict=\"ended\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("verdict=\"unverified\"} 0\n"));
  metrics.drop_run_at(1, 100);
  EXPECT_THAT(text(100), Not(HasSubstr("gnomon_run_verdict{")));
}

TEST_F(MetricsTest, WhatIsAssumedOfTheSpeedIsNotExportedAndWhatWasMeasuredGoesWhenItIsNoMore) {
  metrics.start_run(1, "demo/1", {});
  CostNumbers costs;
  metrics.update_run(1, [&](RunNumbers& numbers) { numbers.costs = costs; });
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_net_speedup_ratio{")));
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_speedup_ratio{")));
  costs.speedup = 1.4;
  costs.net_speedup = 1.2;
  metrics.update_run(1, [&](RunNumbers& numbers) { numbers.costs = costs; });
  EXPECT_THAT(text(), HasSubstr("gnomon_run_net_speedup_ratio{run=\"demo/1\"} 1.2\n"));
  metrics.update_run(1, [](RunNumbers& numbers) { numbers.costs = CostNumbers(); });
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_net_speedup_ratio{")));
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_speedup_ratio{")));
  metrics.update_run(1, [&](RunNumbers& numbers) { numbers.costs = costs; });
  metrics.drop_run_at(1, 0);
  EXPECT_THAT(text(0), Not(HasSubstr("run=\"demo/1\"")));
}

TEST_F(MetricsTest, CountersGoOnFromWhatARunStartsWith) {
  RunNumbers numbers;
  numbers.phase = "containing";
  numbers.paused = true;
  for (int i = 1; i <= 50; ++i) count_step(numbers, step(i));
  numbers.windows["quiet"] = 3;
  metrics.start_run(1, "demo/1", numbers);
  metrics.update_run(1, [](RunNumbers& now) { record_step(now, step(51), 60); });
  EXPECT_THAT(text(), HasSubstr("gnomon_run_tokens_total{run=\"demo/1\"} 5100\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_windows_total{outcome=\"quiet\",run=\"demo/1\"} 3\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_state{run=\"demo/1\",state=\"containing\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_paused{run=\"demo/1\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_step_duration_seconds_count{run=\"demo/1\"} 51\n"));
}

TEST_F(MetricsTest, SeriesOfAnEndedRunGoWhenTheirTimeIsOverAndOthersStay) {
  metrics.start_run(1, "old/1", {});
  metrics.start_run(2, "new/1", {});
  metrics.drop_run_at(1, 100);
  EXPECT_THAT(text(99), HasSubstr("run=\"old/1\""));
  EXPECT_THAT(text(100), Not(HasSubstr("run=\"old/1\"")));
  EXPECT_THAT(text(100), HasSubstr("run=\"new/1\""));
  metrics.update_run(1, [](RunNumbers&) { FAIL() << "a dropped run has no series"; });
}

TEST_F(MetricsTest, AtMostTwoHundredLayersAreShown) {
  metrics.start_run(1, "deep/1", {});
  std::vector<std::pair<std::string, double>> layers;
  for (int i = 0; i < 300; ++i) {
    layers.emplace_back(std::to_string(i), 1.0);
  }
  metrics.update_run(1, [&](RunNumbers& numbers) { record_layers(numbers, layers); });
  std::string now = text();
  int count = 0;
  for (size_t at = 0; (at = now.find("gnomon_run_layer_precision{", at)) != std::string::npos;
       ++at) {
    ++count;
  }
  EXPECT_EQ(count, 200);
}

DeviceHealth errors(int64_t uncorrected) {
  DeviceHealth health;
  health.device = "0000:01:00.0";
  health.ecc_uncorrected = uncorrected;
  return health;
}

TEST_F(MetricsTest, ADevicesCounterBeginsAgainWithItsDriverAndGoesWithTheDevice) {
  metrics.start_run(1, "demo/1", {});
  const auto record = [&](const std::string& host, const DeviceHealth& health) {
    metrics.update_run(1, [&](RunNumbers& numbers) { record_device(numbers, host, health); });
  };
  const std::string of_a =
      "gnomon_device_ecc_errors_total{device=\"0000:01:00.0\",host=\"a\",kind=\"uncorrected\","
      "run=\"demo/1\"} ";
  record("a", errors(5));
  EXPECT_THAT(text(), HasSubstr(of_a + "5\n"));
  record("a", errors(7));
  EXPECT_THAT(text(), HasSubstr(of_a + "7\n"));
  record("a", errors(1));
  EXPECT_THAT(text(), HasSubstr(of_a + "1\n"));
  DeviceHealth silent = errors(1);
  silent.ecc_uncorrected.reset();
  record("a", silent);
  EXPECT_THAT(text(), HasSubstr(of_a + "1\n"));
  record("b", errors(2));
  EXPECT_THAT(text(), Not(HasSubstr("host=\"a\"")));
  EXPECT_THAT(text(), HasSubstr("gnomon_device_up{device=\"0000:01:00.0\",host=\"b\""));
  metrics.drop_run_at(1, 0);
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_device_up{")));
}

// A run that was deleted waits for a scrape; one with its name is there before. Ledgers from before
// slashes were refused in a job_id have runs "a/b", "1" and "a", "b/1".
TEST_F(MetricsTest, ARunOfTheSameLabelHasSeriesOfItsOwn) {
  metrics.start_run(1, "a/b/1", {});
  metrics.update_run(1, [](RunNumbers& numbers) { record_step(numbers, step(7), 50); });
  metrics.drop_run_at(1, 10);
  metrics.start_run(2, "a/b/1", {});
  EXPECT_THAT(text(), HasSubstr("gnomon_run_steps_total{run=\"a/b/1\"} 0\n"));
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_steps_total{run=\"a/b/1\"} 0\n"));
  metrics.update_run(2, [](RunNumbers& numbers) { record_step(numbers, step(1), 60); });
  metrics.update_run(1, [](RunNumbers&) { FAIL() << "its series are gone"; });
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_step{run=\"a/b/1\"} 1\n"));
  // Beside one that lives.
  metrics.start_run(3, "a/b/1", {});
  metrics.update_run(3, [](RunNumbers& numbers) { record_step(numbers, step(9), 60); });
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_step{run=\"a/b/1\"} 1\n"));
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_step{run=\"a/b/1 (run-3)\"} 9\n"));
}

TEST_F(MetricsTest, NoUpdateIsLostWhileOthersScrapeAndRunsComeAndGo) {
  constexpr int kUpdates = 2000;
  metrics.start_run(1, "stays/1", {});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (int i = 1; i <= kUpdates; ++i) {
        metrics.update_run(1, [&](RunNumbers& numbers) { record_step(numbers, step(i), i); });
        metrics.update([](DaemonNumbers& numbers) { numbers.leases["completed"] += 1; });
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < kUpdates; ++i) {
      metrics.start_run(2, "goes/1", {});
      metrics.update_run(2, [&](RunNumbers& numbers) { numbers.notices["ecc_errors"] += 1; });
      metrics.drop_run_at(2, 0);
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_THAT(text(), HasSubstr("gnomon_run_steps_total{"));
  for (std::thread& thread : threads) thread.join();
  const std::string now = text();
  EXPECT_THAT(now, HasSubstr("gnomon_run_steps_total{run=\"stays/1\"} 4000\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_leases_total{outcome=\"completed\"} 4000\n"));
  EXPECT_THAT(now, Not(HasSubstr("goes/1")));
}

TEST(RecordWindow, KeepsItsOffsetWhereThereIsOne) {
  using Window = decide::CloseWindow;
  RunNumbers numbers;
  // A gap of 0.02 nats is 0.5% of 4 nats.
  record_window(numbers, Window{{0.02, 0.004, 0.5, 0.25}, 3, "alarm"});
  EXPECT_DOUBLE_EQ(numbers.offset_ratio.value(), 0.001);
  // Without a gap the loss that the offset is a share of is not known.
  record_window(numbers, Window{{0.0, 0.004, 0.0, 0.25}, 4, "quiet"});
  EXPECT_EQ(numbers.newest_window.value().window, 4);
  EXPECT_DOUBLE_EQ(numbers.offset_ratio.value(), 0.001);
}

// The library's own serializer is the reference.
TEST(TextFormatTest, IsWhatTheLibraryWrites) {
  prometheus::Registry registry;
  auto& gauges = prometheus::BuildGauge().Name("a_gauge").Help("a \"line\"").Register(registry);
  gauges.Add({}).Set(-2.5);
  gauges.Add({{"run", "a \"b\" \\ c\nd"}, {"kind", "x"}}).Set(1e6);
  gauges.Add({{"run", "high"}}).Set(std::numeric_limits<double>::infinity());
  gauges.Add({{"run", "low"}}).Set(-std::numeric_limits<double>::infinity());
  prometheus::BuildCounter().Name("empty_total").Help("has no series").Register(registry);
  prometheus::BuildCounter().Name("b_total").Help("h").Register(registry).Add({}).Increment(3);
  auto& histogram =
      prometheus::BuildHistogram()
          .Name("c_seconds")
          .Help("h")
          .Register(registry)
          .Add({{"route", "/v1"}}, prometheus::Histogram::BucketBoundaries{0.5, 2, 10});
  for (const double value : {0.25, 0.5, 1.0, 64.0}) histogram.Observe(value);
  const std::vector<prometheus::MetricFamily> families = registry.Collect();
  std::ostringstream reference;
  prometheus::TextSerializer().Serialize(reference, families);
  EXPECT_EQ(text_format(families), reference.str());
}

// Which the library does not.
TEST(TextFormatTest, HelpIsOneLine) {
  prometheus::Registry registry;
  prometheus::BuildGauge().Name("g").Help("one\ntwo \\").Register(registry).Add({});
  EXPECT_THAT(text_format(registry.Collect()), HasSubstr("# HELP g one\\ntwo \\\\\n"));
}

TEST(TextFormatTest, NumbersAreTheShortestOfTheirKind) {
  prometheus::Registry registry;
  auto& gauges = prometheus::BuildGauge().Name("g").Help("h").Register(registry);
  gauges.Add({{"n", "1"}}).Set(0.1);
  gauges.Add({{"n", "2"}}).Set(1763823456.25);
  gauges.Add({{"n", "3"}}).Set(std::numeric_limits<double>::quiet_NaN());
  const std::string text = text_format(registry.Collect());
  EXPECT_THAT(text, HasSubstr("g{n=\"1\"} 0.1\n"));
  EXPECT_THAT(text, HasSubstr("g{n=\"2\"} 1763823456.25\n"));
  EXPECT_THAT(text, HasSubstr("g{n=\"3\"} NaN\n"));
}

}  // namespace
}  // namespace gnomon
