// Tensor statistics: on record once, shown whole, the worst of them in the metrics.
#include <fmt/format.h>

#include <limits>
#include <map>
#include <tuple>

#include "controller/metrics/run_numbers.h"
#include "tests/controller/api_fixture.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class StatisticsTest : public ApiTest {
 protected:
  StatisticsTest() {
    trainer.begin();
    sites = get(trainer.path("/layers")).as_array();
  }
  std::string site(size_t i) const { return std::string(sites.at(i).at("site").as_string()); }

  StatisticsRow rounding(size_t i, double underflow) {
    StatisticsRow row;
    row.site = site(i);
    row.tensor = "input";
    row.gemm = "fprop";
    row.recipe = "current";
    row.in_use = true;
    row.elements = 1000;
    row.numbers[static_cast<size_t>(StatisticsNumber::kUnderflow)] = underflow;
    row.numbers[static_cast<size_t>(StatisticsNumber::kSqnrDb)] =
        std::numeric_limits<double>::infinity();
    return row;
  }
  StatisticsReport report(int64_t step, std::vector<StatisticsRow> rows) {
    StatisticsReport made;
    made.attempt = 1;
    made.step = step;
    made.plan_version = 3;
    made.rows = std::move(rows);
    made.time = 12.5;
    return made;
  }
  ReportAck post(const StatisticsReport& made) {
    return from_json<ReportAck>(
        trainer.client().checked("POST", trainer.path("/statistics"), to_json(made)).body);
  }
  std::vector<StatisticsReport> list(const std::string& query) {
    std::vector<StatisticsReport> reports;
    const boost::json::value found = get(trainer.path("/statistics" + query));
    for (const boost::json::value& value : found.as_array()) {
      reports.push_back(from_json<StatisticsReport>(boost::json::serialize(value)));
    }
    return reports;
  }
  std::string gauge(const std::string& name, size_t i) const {
    return fmt::format("{}{{gemm=\"fprop\",run=\"test/1\",site=\"{}\",tensor=\"input\"}}", name,
                       site(i));
  }

  FakeTrainer trainer{daemon.url()};
  boost::json::array sites;
};

TEST_F(StatisticsTest, RowsAreOnRecordOnceWithEveryDigit) {
  StatisticsRow row = rounding(0, 1.0 / 3e9);
  row.histogram = {1, 0, 7};
  row.histogram_lowest = -133;
  StatisticsRow tensor;
  tensor.site = site(0);
  tensor.tensor = "output";
  tensor.elements = 5;
  EXPECT_EQ(post(report(10, {row, tensor})).accepted, 2);
  EXPECT_EQ(post(report(10, {row, tensor})).repeated, 2);
  std::vector<StatisticsReport> reports = list("");
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].step, 10);
  EXPECT_EQ(reports[0].plan_version, 3);
  EXPECT_EQ(reports[0].time, 12.5);
  ASSERT_EQ(reports[0].rows.size(), 2u);
  const StatisticsRow& back = reports[0].rows[0];
  EXPECT_EQ(to_json(back), to_json(row));
  EXPECT_EQ(back.number(StatisticsNumber::kUnderflow), 1.0 / 3e9);
  EXPECT_FALSE(back.number(StatisticsNumber::kMse).has_value());
}

TEST_F(StatisticsTest, StepsSitesAndTensorsCanBeChosen) {
  for (int64_t step : {10, 20, 30}) post(report(step, {rounding(0, 0.1), rounding(1, 0.2)}));
  EXPECT_EQ(list("").front().step, 30);
  std::vector<StatisticsReport> some = list("?from=10&to=20&site=" + site(1));
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].step, 10);
  ASSERT_EQ(some[1].rows.size(), 1u);
  EXPECT_EQ(some[1].rows[0].site, site(1));
  EXPECT_EQ(list("?from=0&tensor=weight").at(0).rows.size(), 0u);
  EXPECT_EQ(refused("GET", trainer.path("/statistics?site=%7Ba")).status, 400);
}

TEST_F(StatisticsTest, TheWorstTensorsOfTheNewestStepAreInTheMetrics) {
  post(report(10, {rounding(0, 0.25)}));
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 0)), 0.25);
  post(report(20, {rounding(1, 0.5)}));
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 0)), -1);
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 1)), 0.5);
  post(report(20, {rounding(0, 0.75)}));  // another part of that step
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 0)), 0.75);
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 1)), 0.5);
  EXPECT_EQ(metric("gnomon_run_statistics_step{run=\"test/1\"}"), 20);
  post(report(10, {rounding(1, 0.9)}));  // late
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 1)), 0.5);
}

TEST_F(StatisticsTest, TheWorstRoundingsInUseCanBeAskedFor) {
  StatisticsRow what_if = rounding(2, 0.99);
  what_if.in_use = false;
  StatisticsRow tensor = rounding(3, 0.98);
  tensor.gemm = "";
  tensor.recipe = "";
  tensor.in_use = false;
  StatisticsRow noisy = rounding(3, 0.0);
  noisy.numbers[static_cast<size_t>(StatisticsNumber::kSqnrDb)] = 3.0;
  post(report(10, {rounding(0, 0.1), rounding(1, 0.3), what_if, tensor, noisy}));
  auto sites_of = [&](const std::string& query) {
    std::vector<std::string> found;
    const std::vector<StatisticsReport> reports = list(query);
    for (const StatisticsRow& row : reports.at(0).rows) found.push_back(row.site);
    return found;
  };
  EXPECT_THAT(sites_of("?worst=underflow"), ::testing::ElementsAre(site(1), site(0), site(3)));
  EXPECT_THAT(sites_of("?worst=underflow&rows=2"), ::testing::ElementsAre(site(1), site(0)));
  EXPECT_THAT(sites_of("?worst=underflow&rows=1&site=" + site(0)), ::testing::ElementsAre(site(0)));
  EXPECT_EQ(sites_of("?worst=sqnr_db&rows=1"), std::vector<std::string>{site(3)});
  EXPECT_EQ(sites_of("").size(), 5u);
  EXPECT_THAT(refused("GET", trainer.path("/statistics?worst=mse")).accepted,
              HasSubstr("underflow, saturation, sqnr_db"));
  EXPECT_EQ(refused("GET", trainer.path("/statistics?worst=sqnr_db&rows=0")).status, 400);
}

TEST_F(StatisticsTest, CountsBelowZeroAndAttemptsThatNeverBeganAreRefused) {
  StatisticsRow row = rounding(0, 0.5);
  row.elements = -5;
  Refused refusal = refused("POST", trainer.path("/statistics"), to_json(report(10, {row})));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("rows[0].elements"));
  row = rounding(0, 0.5);
  row.histogram = {1, -1};
  EXPECT_EQ(refused("POST", trainer.path("/statistics"), to_json(report(10, {row}))).status, 400);
  StatisticsReport early = report(10, {rounding(0, 0.5)});
  early.attempt = 99;
  refusal = refused("POST", trainer.path("/statistics"), to_json(early));
  EXPECT_EQ(refusal.status, 409);
  EXPECT_THAT(refusal.accepted, HasSubstr("the newest is 1"));
  post(report(10, {rounding(0, 0.25)}));
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 0)), 0.25);
}

// Many sites, of which the metrics keep the worst: fewer series than a scrape would suffer from.
TEST(TensorNumbersTest, TheWorstOfEachKindAreKeptAndNoMore) {
  constexpr int kSites = 100;
  StatisticsReport report;
  report.step = 5;
  for (int i = 0; i < kSites; ++i) {
    StatisticsRow row;
    row.site = fmt::format("site.{:03}", i);
    row.tensor = "input";
    auto set = [&](StatisticsNumber number, double value) {
      row.numbers[static_cast<size_t>(number)] = value;
    };
    set(StatisticsNumber::kKurtosis, i);
    report.rows.push_back(row);
    row.gemm = "fprop";
    row.recipe = "mx";  // a what-if, worse than all
    set(StatisticsNumber::kUnderflow, 1.0);
    set(StatisticsNumber::kSqnrDb, -9.0);
    report.rows.push_back(row);
    row.recipe = "current";
    row.in_use = true;
    set(StatisticsNumber::kUnderflow, i * 1e-9);
    set(StatisticsNumber::kSaturation, (kSites - i) * 1e-9);
    set(StatisticsNumber::kSqnrDb, i);
    report.rows.push_back(row);
  }
  RunNumbers numbers;
  record_statistics(numbers, report);
  const TensorNumbers& kept = numbers.tensors;
  for (const auto& [worst, first, last] : {std::tuple{kept.underflow, "site.099", "site.084"},
                                           std::tuple{kept.saturation, "site.000", "site.015"},
                                           std::tuple{kept.sqnr, "site.000", "site.015"},
                                           std::tuple{kept.kurtosis, "site.099", "site.084"}}) {
    ASSERT_EQ(worst.size(), TensorNumbers::kWorstMax);
    EXPECT_EQ(worst.front().site, first);
    EXPECT_EQ(worst.back().site, last);
  }
  EXPECT_DOUBLE_EQ(kept.underflow.back().value, 84e-9);
  // The same place twice.
  report.rows.resize(3);
  record_statistics(numbers, report);
  EXPECT_EQ(kept.underflow.size(), TensorNumbers::kWorstMax);
  report.step = 6;
  record_statistics(numbers, report);
  record_statistics(numbers, report);
  EXPECT_EQ(kept.kurtosis.size(), 1u);
  EXPECT_EQ(kept.underflow.size(), 1u);
  report.step = 5;
  record_statistics(numbers, report);
  EXPECT_EQ(kept.step, 6);
}

// A number that others print as 0.0000.
TEST_F(StatisticsTest, SmallNumbersKeepTheirDigitsInTheMetrics) {
  post(report(10, {rounding(0, 5e-5), rounding(1, 1.0 / 3e9)}));
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 0)), 5e-5);
  EXPECT_EQ(metric(gauge("gnomon_run_tensor_underflow_ratio", 1)), 1.0 / 3e9);
  const std::string text = daemon.client().checked("GET", "/metrics").body;
  EXPECT_THAT(text, HasSubstr(gauge("gnomon_run_tensor_underflow_ratio", 0) + " 5e-05\n"));
}

// Thousands of rows a step are no reason to make an answer that nobody can take.
TEST_F(StatisticsTest, AnAnswerHasTheNewestStepsThatFit) {
  constexpr size_t kMuch = 9 << 20;
  std::vector<StatisticsRow> rows;
  for (size_t i = 0; i < sites.size(); ++i) {
    for (const auto& [tensor, gemm] :
         {std::pair("input", "fprop"), std::pair("input", "wgrad"), std::pair("weight", "fprop"),
          std::pair("weight", "dgrad")}) {
      rows.push_back(rounding(i, 0.5));
      rows.back().tensor = test::any_word(tensor);
      rows.back().gemm = test::any_word(gemm);
      rows.back().histogram.assign(64, 1234567890123);
      rows.back().histogram_lowest = -100;
    }
  }
  int64_t step = 0;
  for (size_t bytes = 0; bytes < kMuch;) {
    const StatisticsReport made = report(++step, rows);
    post(made);
    bytes += to_json(made).size();
  }
  ASSERT_LE(step, 1000);
  const std::vector<StatisticsReport> shown = list("?from=1&limit=1000");
  EXPECT_EQ(shown.back().step, step);
  EXPECT_GT(shown.size(), static_cast<size_t>(step) / 2);
  EXPECT_LT(shown.size(), static_cast<size_t>(step));
  EXPECT_EQ(shown.front().step, step - static_cast<int64_t>(shown.size()) + 1);
}

TEST_F(StatisticsTest, WrongRowsAreNamed) {
  auto refusal = [&](const StatisticsRow& row) {
    return refused("POST", trainer.path("/statistics"), to_json(report(1, {rounding(0, 0), row})));
  };
  StatisticsRow row = rounding(0, 0);
  row.site = "nowhere";
  EXPECT_THAT(refusal(row).detail, HasSubstr("rows[1].site is \"nowhere\""));
  row = rounding(0, 0);
  row.tensor = test::any_word("amax");
  EXPECT_THAT(refusal(row).accepted, HasSubstr("gradient"));
  row = rounding(0, 0);
  row.recipe = "";
  EXPECT_EQ(refusal(row).status, 400);
  EXPECT_EQ(refused("POST", trainer.path("/statistics"), to_json(report(0, {}))).status, 400);
  EXPECT_EQ(list("").size(), 0u);
}

}  // namespace
}  // namespace gnomon
