#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/errors.h"
#include "lab/bench/statistics.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::test {
namespace {

BenchStatisticsOptions quick(const TemporaryDirectory& directory) {
  return {.size = "demo", .threads = 1, .rounds = 1, .scratch = directory.path()};
}

TEST(BenchStatistics, ALookCostsMoreThanAStepWithoutAndTheShareFollows) {
  TemporaryDirectory directory;
  BenchStatisticsOptions options = quick(directory);
  options.every = 50;
  const boost::json::value result = boost::json::parse(bench_statistics_json(options));
  auto number = [](const boost::json::value& value) { return value.to_number<double>(); };
  const double off = number(result.at("off").at("step_cpu_seconds"));
  const double look = number(result.at("look").at("step_cpu_seconds"));
  EXPECT_GT(off, 0);
  EXPECT_GT(look, off);
  EXPECT_NEAR(number(result.at("look_steps")), look / off - 1, 1e-9 * look / off);
  EXPECT_NEAR(number(result.at("share")), (look / off - 1) / 50, 1e-9 * look / off);
  // 4 layers of 7 sites and the head: 4 tensors each, 6 roundings in use and 6 of each what-if.
  EXPECT_EQ(result.at("sites").as_int64(), 29);
  EXPECT_EQ(result.at("rows").as_int64(), 29 * (4 + 6 + 2 * 6));
  EXPECT_GT(result.at("report_bytes").as_int64(), 29 * 22 * 100);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(BenchStatistics, RefusesWhatItCannotMeasure) {
  TemporaryDirectory directory;
  BenchStatisticsOptions options = quick(directory);
  options.rounds = 0;
  EXPECT_THROW(bench_statistics_json(options), ConfigError);
  options = quick(directory);
  options.every = 0;
  EXPECT_THROW(bench_statistics_json(options), ConfigError);
  options = quick(directory);
  options.recipe = "none";
  EXPECT_THROW(bench_statistics_json(options), ConfigError);
  options = quick(directory);
  options.what_if = {"blocks"};
  EXPECT_THROW(bench_statistics_json(options), ConfigError);
}

}  // namespace
}  // namespace gnomon::test
