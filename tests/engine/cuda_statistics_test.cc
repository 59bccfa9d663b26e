// The statistics of an engine on the CUDA backend, emulated or on a GPU: those that the host finds
// in the same tensors.
#include <gtest/gtest.h>

#include <cmath>

#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tested_backends.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::test {
namespace {

class CudaEngineStatistics : public testing::Test {
 protected:
  CudaEngineStatistics() {
    config.model.layers = 1;
    config.model.ffn = 144;
  }
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  const BackendMakers tested = tested_backends();
};

void expect_close(const StatisticsRow& row, StatisticsNumber number, double expected) {
  const std::optional<double>& found = row.numbers[static_cast<size_t>(number)];
  ASSERT_EQ(found.has_value(), !std::isnan(expected)) << static_cast<int>(number);
  if (!found) return;
  EXPECT_NEAR(*found, expected, 1e-12 * std::abs(expected)) << static_cast<int>(number);
}

void expect_tensor(const StatisticsRow& row, const TensorStatistics& expected) {
  using enum StatisticsNumber;
  EXPECT_EQ(row.histogram, expected.histogram.bins);
  expect_close(row, kZeros, static_cast<double>(expected.zeros));
  expect_close(row, kL2, expected.l2);
  expect_close(row, kKurtosis, expected.kurtosis);
  expect_close(row, kTokenKurtosisMean, expected.token_kurtosis_mean);
  expect_close(row, kTokenKurtosisMax, expected.token_kurtosis_max);
}

void expect_rounding(const StatisticsRow& row, const QuantizationStatistics& expected) {
  using enum StatisticsNumber;
  expect_close(row, kTiles, static_cast<double>(expected.tiles));
  expect_close(row, kUnderflow, expected.underflow);
  expect_close(row, kTopCode, expected.top_code);
  expect_close(row, kTilesInTopCode, expected.tiles_in_top_code);
  expect_close(row, kMse, expected.mse);
  expect_close(row, kCosine, expected.cosine);
  expect_close(row, kScaleMin, expected.scale_min);
  expect_close(row, kScaleMax, expected.scale_max);
  expect_close(row, kTileRangeMean, expected.tile_range_mean);
}

// One backend's activations differ from another's, so each tensor is dumped and looked at again.
TEST_F(CudaEngineStatistics, AreThoseOfTheSameTensorsOnTheHost) {
  const std::vector<std::string> names = {"input", "weight", "gradient", "output",
                                          "weight_gradient"};
  const std::vector<std::string> sites = {"model.layers.0.self_attn.k_proj",
                                          "model.layers.0.mlp.up_proj",
                                          "model.layers.0.mlp.down_proj", "lm_head"};
  Engine engine(config, EngineRole::kLive, nullptr, &tested);
  engine.initialize();
  engine.set_plan(PrecisionPlan::parse("[[rule]]\nmatch = \"lm_head\"\ngemms = \"bf16\"\n"));
  const auto collector = engine.statistics(
      {.match = sites, .tensors = names, .what_if = {"current", "rowwise", "block", "mx"}}, "test");
  for (const std::string& site : sites) {
    for (const std::string& name : names) collector->dump(site, name);
  }
  engine.inspect(1, *collector);
  const std::filesystem::path path = directory.path() / "dumps.safetensors";
  collector->write_dumps(path.string());
  const SafetensorsFile dumps(path);
  for (const StatisticsRow& row : collector->rows()) {
    SCOPED_TRACE(fmt::format("{} {} {} {}", row.site, row.tensor, row.gemm, row.recipe));
    const TensorView* x = dumps.find(fmt::format("{}.{}", row.site, row.tensor));
    ASSERT_NE(x, nullptr);
    const TensorProbe probe({static_cast<const bf16*>(x->data), x->shape[0], x->shape[1]}, 1);
    if (row.gemm.empty()) {
      expect_tensor(row, probe.measure());
      continue;
    }
    const Quantizer quantizer =
        quantizer_for(what_if_precision(row.recipe, "", ""), tensor_role_from_name(row.tensor),
                      gemm_from_name(row.gemm));
    expect_rounding(row, probe.compare(quantizer));
  }
  // Each site has five tensors, and three of them in two GEMMs under four recipes; but in dgrad k
  // and up run as one with the sites before them, whose weights alone are shown.
  EXPECT_EQ(collector->rows().size(), sites.size() * (names.size() + size_t{3 * 2 * 4}) - 2 * 4);
}

TEST_F(CudaEngineStatistics, GateCosinesAndTheRecipeInUseAreTheCpus) {
  StatisticsConfig asked = {.tensors = {"weight"}, .what_if = {}};
  std::vector<std::vector<StatisticsRow>> rows;
  for (const BackendMakers* makers : {static_cast<const BackendMakers*>(nullptr), &tested}) {
    Engine engine(config, EngineRole::kLive, nullptr, makers);
    engine.initialize();
    engine.set_plan(PrecisionPlan::fp8(Recipe::kCurrent));
    const auto collector = engine.statistics(asked, "test");
    engine.train_step(collector.get());
    rows.push_back(collector->rows());
  }
  ASSERT_EQ(rows[1].size(), rows[0].size());
  int cosines = 0;
  for (size_t i = 0; i < rows[0].size(); ++i) {
    SCOPED_TRACE(fmt::format("{} {}", rows[0][i].site, rows[0][i].gemm));
    EXPECT_EQ(rows[1][i].site, rows[0][i].site);
    for (size_t number = 0; number < rows[0][i].numbers.size(); ++number) {
      expect_close(rows[1][i], static_cast<StatisticsNumber>(number),
                   rows[0][i].numbers[number].value_or(NAN));
    }
    cosines += rows[1][i].number(StatisticsNumber::kGateCosineMean).has_value() ? 1 : 0;
  }
  EXPECT_EQ(cosines, 1);
}

}  // namespace
}  // namespace gnomon::test
