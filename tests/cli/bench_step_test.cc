#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/errors.h"
#include "lab/bench/step.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::test {
namespace {

TEST(BenchStep, CountsTheOperationsOfTheGemmsAndOfAttention) {
  EngineConfig config;
  config.model = small_model();
  config.batch = {.sequences = 2, .tokens = 16, .accumulation = 1};
  double weights = 2 * (32 * 32 * 2 + 2 * 16 * 32 + 3 * 48 * 32) + 64 * 32;
  EXPECT_DOUBLE_EQ(step_flops(config), 32 * (6 * weights + 6.0 * 2 * 16 * 32));
}

TEST(BenchStep, EverySizeHasAValidConfiguration) {
  for (const std::string& size : bench_step_sizes())
    EXPECT_NO_THROW(bench_step_config(size).model.check());
  EXPECT_NEAR(static_cast<double>(bench_step_config("10m").model.parameters()), 10.5e6, 0.2e6);
  EXPECT_THROW(bench_step_config("1t"), ConfigError);
}

TEST(BenchStep, ReportsConsistentNumbersAndLeavesNothingBehind) {
  TemporaryDirectory directory;
  std::string text =
      bench_step_json({.size = "demo", .threads = 1, .rounds = 1, .scratch = directory.path()});
  boost::json::object result = boost::json::parse(text).get_object();
  for (const char* precision : {"bf16", "fp8"}) {
    boost::json::object& side = result.at(precision).get_object();
    double seconds = side.at("step_seconds").as_double();
    EXPECT_GT(seconds, 0);
    EXPECT_GT(side.at("step_cpu_seconds").as_double(), 0);
    EXPECT_NEAR(side.at("tokens_per_second").as_double() * seconds, 1024, 1e-6);
    double rate = result.at("gemm").at("flops_per_second").as_double();
    double share = side.at("gemm_share").as_double();
    EXPECT_NEAR(share * rate * seconds, step_flops(bench_step_config("demo")),
                1e-3 * share * rate * seconds);
    EXPECT_GT(share, 0);
  }
  EXPECT_NEAR(result.at("fp8_over_bf16").as_double(),
              result.at("fp8").at("tokens_per_second").as_double() /
                  result.at("bf16").at("tokens_per_second").as_double(),
              1e-9);
  int64_t sum = 0;
  for (const auto& [name, bytes] : result.at("arenas").as_object()) sum += bytes.as_int64();
  EXPECT_EQ(result.at("memory_planned_bytes").as_int64(), sum);
#ifndef __SANITIZE_ADDRESS__  // whose memory for freed blocks grows on its own
  EXPECT_LE(result.at("memory_peak_bytes").as_int64(), 1.15 * static_cast<double>(sum));
#endif
  EXPECT_EQ(result.at("threads").as_int64(), 1);
  EXPECT_EQ(result.at("recipe").as_string(), "current");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// A BF16 plan has rules, too, where moments are narrow.
TEST(BenchStep, WithNarrowMomentsEachPrecisionHasItsOwnTimes) {
  TemporaryDirectory directory;
  const boost::json::value result =
      boost::json::parse(bench_step_json({.size = "demo",
                                          .moments = MomentFormat::kFp8,
                                          .threads = 1,
                                          .rounds = 1,
                                          .scratch = directory.path()}));
  EXPECT_NEAR(result.at("fp8_over_bf16").as_double(),
              result.at("bf16").at("step_seconds").as_double() /
                  result.at("fp8").at("step_seconds").as_double(),
              1e-9);
}

TEST(BenchStep, RunsTheRecipeAskedFor) {
  TemporaryDirectory directory;
  BenchStepOptions options{
      .size = "demo", .threads = 1, .recipe = "block", .rounds = 1, .scratch = directory.path()};
  boost::json::object result = boost::json::parse(bench_step_json(options)).get_object();
  EXPECT_EQ(result.at("recipe").as_string(), "block");
  EXPECT_GT(result.at("fp8").at("step_seconds").as_double(), 0);
  options.recipe = "none";
  EXPECT_THROW(bench_step_json(options), ConfigError);
  options.recipe = "blocks";
  EXPECT_THROW(bench_step_json(options), Error);
}

}  // namespace
}  // namespace gnomon::test
