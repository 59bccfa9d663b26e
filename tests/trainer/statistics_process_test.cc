// Tensor statistics on their whole way: from a real gnomon-trainer to the ledger, the API and the
// metrics of a real gnomond; and while there is no gnomond, past a run that they must not disturb.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "protocol/json.h"
#include "storage/ledger_connection.h"
#include "tests/trainer/daemon_fixture.h"

namespace gnomon {
namespace {

using test::DaemonFixture;
using test::eventually;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Looks at steps 5, 10, ... 30 of 30.
constexpr const char* kStatistics =
    "[statistics]\nevery = 5\nmatch = [\"*.down_proj\", \"lm_head\"]\ntensors = [\"input\", "
    "\"gradient\"]\nwhat_if = [\"block\"]\n";

class StatisticsProcess : public DaemonFixture {
 protected:
  boost::json::array reports(const std::string& query = "?from=0") {
    return daemon_.rows("statistics" + query);
  }
  std::vector<int64_t> steps_on_record() {
    std::vector<int64_t> steps;
    for (const boost::json::value& report : reports())
      steps.push_back(report.at("step").as_int64());
    return steps;
  }
  std::string metrics() const { return daemon_.client().checked("GET", "/metrics").body; }
  // Hash of the model at the end of a whole run.
  std::string trained(const std::string& extra, const std::vector<std::string>& more) {
    auto trainer = start(config(30, extra), more);
    EXPECT_EQ(trainer->wait(), 0) << trainer->output();
    output_ = trainer->output();
    const std::string hash = hash_of_model(newest(run_dir()));
    std::filesystem::remove_all(run_dir());
    return hash;
  }

  std::string output_;
};

TEST_F(StatisticsProcess, TravelToTheLedgerTheApiAndTheMetrics) {
  daemon_.start();
  auto trainer = start_supervised(config(30, kStatistics));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  ASSERT_THAT(steps_on_record(), ElementsAre(5, 10, 15, 20, 25, 30));
  for (const boost::json::value& value : reports()) {
    const auto report = from_json<StatisticsReport>(boost::json::serialize(value));
    // Two down_proj and the head; of each two tensors, four roundings in use and as many asked for.
    ASSERT_EQ(report.rows.size(), 3u * (2 + 4 + 4)) << report.step;
    std::set<std::string> sites;
    for (const StatisticsRow& row : report.rows) {
      sites.insert(row.site);
      EXPECT_GT(row.elements, 0);
      if (row.recipe.empty()) {
        EXPECT_GT(row.number(StatisticsNumber::kAmax), 0.0);
        EXPECT_FALSE(row.histogram.empty());
        EXPECT_EQ(row.number(StatisticsNumber::kAmaxOverWindow).has_value(), report.step > 5);
      } else {
        EXPECT_EQ(row.recipe, row.in_use ? "delayed" : "block");
        EXPECT_TRUE(row.number(StatisticsNumber::kSqnrDb).has_value());
        EXPECT_EQ(row.number(StatisticsNumber::kScaleError).has_value(), row.in_use);
      }
    }
    EXPECT_THAT(sites, ElementsAre("lm_head", "model.layers.0.mlp.down_proj",
                                   "model.layers.1.mlp.down_proj"));
  }
  const std::string text = metrics();
  EXPECT_THAT(text, HasSubstr("\ngnomon_run_statistics_step{run=\"tiny/7\"} 30\n"));
  for (const char* family : {"underflow_ratio", "saturation_ratio", "sqnr_decibels"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\ngnomon_run_tensor_") + family +
                                "{gemm=\"dgrad\",run=\"tiny/7\",site=\"lm_head\",tensor=\""
                                "gradient\"} "));
  }
  EXPECT_THAT(text, HasSubstr("\ngnomon_run_tensor_kurtosis{run=\"tiny/7\",site=\"lm_head\","
                              "tensor=\"input\"} "));
  // What the API tells is what the ledger has.
  daemon_.kill();
  Connection connection(daemon_.ledger(), Connection::Kind::kReader);
  Query query = connection.query("SELECT count(*), min(underflow), max(amax) FROM statistics");
  ASSERT_TRUE(query.next());
  EXPECT_EQ(query.integer(0), 6 * 3 * 10);
  EXPECT_GE(query.real(1), 0.0);
  EXPECT_GT(query.real(2), 0.0);
}

TEST_F(StatisticsProcess, NeitherTheyNorAnAbsentControllerChangeABitOfTheRun) {
  const std::string alone = trained("", {});
  EXPECT_EQ(trained(kStatistics, {}), alone) << "without any controller";
  daemon_.start();
  EXPECT_EQ(trained(kStatistics, {"--controller", daemon_.url()}), alone);
  daemon_.kill();  // nobody answers at that address any more
  const std::string away = "flush_seconds = 0.1\n";
  EXPECT_EQ(
      trained(std::string("[controller]\n") + away + kStatistics, {"--controller", daemon_.url()}),
      alone);
  EXPECT_THAT(output_, HasSubstr("not delivered yet"));
}

TEST_F(StatisticsProcess, WhatWasGatheredWithoutAControllerArrivesOnceThereIsOne) {
  daemon_.start();
  daemon_.kill();
  auto trainer = start_supervised(config(1000000, kStatistics));
  ASSERT_TRUE(eventually([&] {
    if (!std::filesystem::exists(run_dir() / "checkpoints")) return false;
    const auto checkpoint = CheckpointStore(run_dir() / "checkpoints").newest_intact();
    return checkpoint && checkpoint->step >= 10;  // behind two looks
  })) << trainer->output();
  trainer->signal(SIGKILL);  // and the trainer itself falls
  trainer->wait();
  trainer = start_supervised(config(1000000, kStatistics));
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("attempt 2 goes on") != std::string::npos;
  })) << trainer->output();
  daemon_.start_again();
  auto of_attempt = [&](int64_t number) {
    const boost::json::array all = reports();
    return std::ranges::count_if(all, [number](const boost::json::value& report) {
      return report.at("attempt").as_int64() == number;
    });
  };
  EXPECT_TRUE(eventually([&] { return of_attempt(1) > 0 && of_attempt(2) > 1; }))
      << trainer->output() << daemon_.log();
  trainer->signal(SIGTERM);
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), Not(HasSubstr("refused a report")));
}

TEST_F(StatisticsProcess, AFullSpoolLosesThemAndNothingElse) {
  daemon_.start();
  daemon_.kill();
  const std::string many =
      "spool_bytes_max = 65536\non_loss = \"continue\"\n"
      "[statistics]\nevery = 1\nmatch = [\"*.down_proj\"]\ntensors = [\"input\"]\n"
      "what_if = [\"block\", \"mx\", \"rowwise\"]\n";
  auto trainer = start_supervised(config(30, "[controller]\nflush_seconds = 0.1\n" + many));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("no room in the spool for tensor statistics"));
  EXPECT_THAT(trainer->output(), Not(HasSubstr("STEP REPORTS ARE DROPPED")));
  daemon_.start_again();
  trainer = start_supervised(config(30, "[controller]\nflush_seconds = 30\n" + many));  // the rest
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(daemon_.rows("steps").size(), 30u) << "every step is on record";
  EXPECT_THAT(steps_on_record(), AllOf(Contains(1), Not(Contains(29))));
}

}  // namespace
}  // namespace gnomon
