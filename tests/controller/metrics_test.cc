#include "controller/metrics/metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>

#include "controller/metrics/text_format.h"
#include "controller/metrics/totals.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  Metrics metrics{[] { return size_t{3}; }};
  std::string text(double now = 0) { return metrics.serialize(now); }
};

StepReport step(int64_t number) { return {1, number, 7, 2.5, 0.5, 1e-3, 100, 0.2, "", 50}; }

TEST_F(MetricsTest, ANewRunShowsItsCountersAtZeroAndNoGaugeWithoutAValue) {
  metrics.start_run(1, "demo/1", {});
  EXPECT_THAT(text(), HasSubstr("gnomon_run_steps_total{run=\"demo/1\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_windows_total{outcome=\"alarm\",run=\"demo/1\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_decisions_total{kind=\"return\",run=\"demo/1\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_state{run=\"demo/1\",state=\"watching\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("gnomon_run_state{run=\"demo/1\",state=\"holding\"} 0\n"));
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_loss{")));
  EXPECT_THAT(text(), HasSubstr("gnomon_ledger_queue_length 3\n"));
}

TEST_F(MetricsTest, StepsAndWindowsMoveTheirSeries) {
  metrics.start_run(1, "demo/1", {});
  metrics.update_run(1, [](RunSeries& series) {
    series.step(step(40), 50);
    series.window({1, "quiet", 0.001, 0.005, 0.002});
  });
  std::string now = text();
  EXPECT_THAT(now, HasSubstr("gnomon_run_loss{run=\"demo/1\"} 2.5\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_tokens_total{run=\"demo/1\"} 100\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_gap_ratio{run=\"demo/1\"} 0.001\n"));
  EXPECT_THAT(now, HasSubstr("gnomon_run_windows_total{outcome=\"quiet\",run=\"demo/1\"} 1\n"));
  EXPECT_THAT(now,
              HasSubstr("gnomon_run_step_duration_seconds_bucket{run=\"demo/1\",le=\"0.25\"} 1\n"));
  EXPECT_THAT(now,
              HasSubstr("gnomon_run_step_duration_seconds_bucket{run=\"demo/1\",le=\"0.1\"} 0\n"));
}

TEST_F(MetricsTest, ExactlyOneVerdictIsOneAndAllGoWithTheRun) {
  metrics.start_run(1, "demo/1", {});
  decide::VerdictFacts facts;
  facts.newest_step = 900;
  facts.lag_steps = 860;
  metrics.update_run(
      1, [&](RunSeries& series) { series.set_verdict(decide::VerdictKind::kUnverified, facts); });
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
  metrics.update_run(1, [](RunSeries& series) { series.set_ended(); });
  EXPECT_THAT(text(), HasSubstr("verdict=\"ended\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("verdict=\"unverified\"} 0\n"));
  metrics.drop_run_at(1, 100);
  EXPECT_THAT(text(100), Not(HasSubstr("gnomon_run_verdict{")));
}

TEST_F(MetricsTest, WhatIsAssumedOfTheSpeedIsNotExportedAndWhatWasMeasuredGoesWhenItIsNoMore) {
  metrics.start_run(1, "demo/1", {});
  MoneyNumbers money;
  metrics.update_run(1, [&](RunSeries& series) { series.set_money(money); });
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_net_speedup_ratio{")));
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_speedup_ratio{")));
  money.speedup = 1.4;
  money.net_speedup = 1.2;
  metrics.update_run(1, [&](RunSeries& series) { series.set_money(money); });
  EXPECT_THAT(text(), HasSubstr("gnomon_run_net_speedup_ratio{run=\"demo/1\"} 1.2\n"));
  metrics.update_run(1, [](RunSeries& series) { series.set_money({}); });
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_net_speedup_ratio{")));
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_run_speedup_ratio{")));
  metrics.update_run(1, [&](RunSeries& series) { series.set_money(money); });
  metrics.drop_run_at(1, 0);
  EXPECT_THAT(text(0), Not(HasSubstr("run=\"demo/1\"")));
}

TEST_F(MetricsTest, TotalsOfTheLedgerAreWhereCountersGoOn) {
  RunTotals totals;
  totals.phase = "containing";
  totals.paused = true;
  totals.tokens = 5000;
  totals.steps = 50;
  totals.train_seconds = 10;
  totals.step_duration_counts.assign(step_duration_buckets().size() + 1, 0);
  totals.step_duration_counts[5] = 50;
  totals.windows["quiet"] = 3;
  totals.newest_step = step(50);
  metrics.start_run(1, "demo/1", totals);
  metrics.update_run(1, [](RunSeries& series) { series.step(step(51), 60); });
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
  metrics.update_run(1, [](RunSeries&) { FAIL() << "a dropped run has no series"; });
}

TEST_F(MetricsTest, AtMostTwoHundredLayersAreShown) {
  metrics.start_run(1, "deep/1", {});
  std::vector<std::pair<std::string, double>> layers;
  for (int i = 0; i < 300; ++i) {
    layers.emplace_back(std::to_string(i), 1.0);
  }
  metrics.update_run(1, [&](RunSeries& series) { series.set_layers(layers); });
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
  const auto take = [&](const std::string& host, const DeviceHealth& health) {
    metrics.update_run(1, [&](RunSeries& series) { series.device_health(host, health); });
  };
  const std::string of_a =
      "gnomon_device_ecc_errors_total{device=\"0000:01:00.0\",host=\"a\",kind=\"uncorrected\","
      "run=\"demo/1\"} ";
  take("a", errors(5));
  EXPECT_THAT(text(), HasSubstr(of_a + "5\n"));
  take("a", errors(7));
  EXPECT_THAT(text(), HasSubstr(of_a + "7\n"));
  take("a", errors(1));
  EXPECT_THAT(text(), HasSubstr(of_a + "1\n"));
  take("b", errors(2));
  EXPECT_THAT(text(), Not(HasSubstr("host=\"a\"")));
  EXPECT_THAT(text(), HasSubstr("gnomon_device_up{device=\"0000:01:00.0\",host=\"b\""));
  metrics.drop_run_at(1, 0);
  EXPECT_THAT(text(), Not(HasSubstr("gnomon_device_up{")));
}

// A run that was deleted waits for a scrape; one with its name is there before. Ledgers from before
// slashes were refused in a job_id have runs "a/b", "1" and "a", "b/1".
TEST_F(MetricsTest, ARunOfTheSameLabelHasSeriesOfItsOwn) {
  metrics.start_run(1, "a/b/1", {});
  metrics.update_run(1, [](RunSeries& series) { series.step(step(7), 50); });
  metrics.drop_run_at(1, 10);
  metrics.start_run(2, "a/b/1", {});
  EXPECT_THAT(text(), HasSubstr("gnomon_run_steps_total{run=\"a/b/1\"} 0\n"));
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_steps_total{run=\"a/b/1\"} 0\n"));
  metrics.update_run(2, [](RunSeries& series) { series.step(step(1), 60); });
  metrics.update_run(1, [](RunSeries&) { FAIL() << "its series are gone"; });
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_step{run=\"a/b/1\"} 1\n"));
  // Beside one that lives.
  metrics.start_run(3, "a/b/1", {});
  metrics.update_run(3, [](RunSeries& series) { series.step(step(9), 60); });
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_step{run=\"a/b/1\"} 1\n"));
  EXPECT_THAT(text(20), HasSubstr("gnomon_run_step{run=\"a/b/1 (run-3)\"} 9\n"));
}

TEST(WindowNumbersTest, RatiosFollowFromTheGapAndItsShare) {
  decide::CloseWindow close{
      {0.02, 0.004, 0.5, 0.25}, 1, "alarm"};  // gap 0.02 nats is 0.5% of 4 nats
  WindowNumbers numbers = window_numbers(close);
  EXPECT_DOUBLE_EQ(numbers.gap_ratio.value(), 0.005);
  EXPECT_DOUBLE_EQ(numbers.tolerance_ratio.value(), 0.0025);
  EXPECT_DOUBLE_EQ(numbers.offset_ratio.value(), 0.001);
  EXPECT_FALSE(window_numbers({1, "skipped", {}, {}, {}, 0}).gap_ratio.has_value());
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
