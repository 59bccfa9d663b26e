// The collector against the kernels' statistics of tensors that it did not see itself, and the rule
// that looking changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/errors.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::test {
namespace {

PrecisionPlan delayed_plan() {
  return PrecisionPlan::parse(
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\namax_history = 3\n");
}

class Statistics : public testing::Test {
 protected:
  Statistics() : config(small_engine(directory.path())) {}

  TemporaryDirectory directory;
  EngineConfig config;
};

const StatisticsRow* find(const std::vector<StatisticsRow>& rows, const std::string& site,
                          const std::string& tensor, const std::string& gemm = "",
                          const std::string& recipe = "") {
  for (const StatisticsRow& row : rows) {
    if (row.site == site && row.tensor == tensor && row.gemm == gemm && row.recipe == recipe) {
      return &row;
    }
  }
  return nullptr;
}

TEST_F(Statistics, LookingChangesNoWeight) {
  for (const PrecisionPlan& plan :
       {PrecisionPlan::bf16(), PrecisionPlan::fp8(Recipe::kCurrent), delayed_plan()}) {
    Engine plain(config);
    plain.set_plan(plan);
    plain.initialize();
    std::vector<uint64_t> expected = train_hashes(plain, 6);
    Engine watched(config);
    watched.set_plan(plan);
    watched.initialize();
    StatisticsConfig all;
    all.what_if = {"current", "rowwise", "block", "mx"};
    std::unique_ptr<StatisticsCollector> collector = watched.statistics(all, "test");
    for (int i = 0; i < 6; ++i) {
      watched.inspect(watched.step() + 1, *collector);
      EXPECT_EQ(watched.train_step(collector.get()).weights_hash, expected[static_cast<size_t>(i)])
          << i;
    }
  }
}

TEST_F(Statistics, EverySiteAndTensorHasOneRowAndEveryGemmItsRounding) {
  for (const PrecisionPlan& plan : {PrecisionPlan::bf16(), PrecisionPlan::fp8(Recipe::kCurrent)}) {
    const bool fp8 = !plan.rules.empty();
    Engine engine(config);
    engine.set_plan(plan);
    engine.initialize();
    std::unique_ptr<StatisticsCollector> collector = engine.statistics({}, "test");
    engine.train_step(collector.get());
    const std::vector<std::string> sites = config.model.sites();
    for (const std::string& site : sites) {
      for (const char* tensor : {"input", "weight", "gradient", "output"}) {
        const StatisticsRow* row = find(collector->rows(), site, tensor);
        ASSERT_NE(row, nullptr) << site << " " << tensor;
        EXPECT_GT(row->elements, 0);
        EXPECT_TRUE(row->number(StatisticsNumber::kAmax).has_value());
      }
      for (auto [tensor, gemm] : {std::pair{"input", "fprop"}, std::pair{"input", "wgrad"},
                                  std::pair{"weight", "fprop"}, std::pair{"weight", "dgrad"},
                                  std::pair{"gradient", "dgrad"}, std::pair{"gradient", "wgrad"}}) {
        const StatisticsRow* row = find(collector->rows(), site, tensor, gemm, "current");
        ASSERT_EQ(row != nullptr, fp8) << site << " " << tensor << " " << gemm;
        if (!fp8) continue;
        EXPECT_TRUE(row->in_use);
        EXPECT_GT(row->number(StatisticsNumber::kSqnrDb), 10.0);
        EXPECT_EQ(row->number(StatisticsNumber::kSaturation), 0.0);
      }
    }
    EXPECT_EQ(collector->rows().size(), sites.size() * (fp8 ? 10 : 4));
  }
}

// In BF16 q, k and v run as one GEMM; in FP8 each by itself. The numbers are of the same tensors.
TEST_F(Statistics, JoinedGemmsAreTakenApart) {
  config.threads = 2;
  Engine engine(config);
  engine.initialize();
  std::unique_ptr<StatisticsCollector> together = engine.statistics({}, "test");
  engine.inspect(1, *together);
  // FP8 at o_proj of the last layer alone changes nothing above it, but the plan of q, k, v below
  // is BF16 all the same; FP8 wgrad at q alone takes the three apart and leaves dy as it is.
  engine.set_plan(PrecisionPlan::parse(
      "[[rule]]\nmatch = \"model.layers.1.self_attn.q_proj\"\nwgrad = \"fp8\"\n"));
  std::unique_ptr<StatisticsCollector> apart = engine.statistics({}, "test");
  engine.inspect(1, *apart);
  for (const char* proj : {"q_proj", "k_proj", "v_proj"}) {
    const std::string site = std::string("model.layers.1.self_attn.") + proj;
    for (const char* tensor : {"input", "weight", "gradient", "output"}) {
      const StatisticsRow* one = find(together->rows(), site, tensor);
      const StatisticsRow* other = find(apart->rows(), site, tensor);
      ASSERT_TRUE(one != nullptr && other != nullptr) << site << tensor;
      EXPECT_EQ(one->elements, other->elements);
      EXPECT_EQ(one->numbers, other->numbers) << site << " " << tensor;
    }
  }
}

// Gradients of all layers stand in the same memory one after the other, and sites share inputs:
// every row is of the tensor it names, which the dumps hold.
TEST_F(Statistics, RowsAreOfTheTensorsTheyName) {
  config.threads = 2;
  for (const PrecisionPlan& plan : {PrecisionPlan::bf16(), PrecisionPlan::fp8(Recipe::kCurrent)}) {
    Engine engine(config);
    engine.set_plan(plan);
    engine.initialize();
    StatisticsConfig asked;
    asked.what_if = {"rowwise", "mx"};
    std::unique_ptr<StatisticsCollector> collector = engine.statistics(asked, "test");
    const std::vector<std::string> sites = config.model.sites();
    for (const std::string& site : sites) {
      for (const char* tensor : {"input", "weight", "gradient", "output"}) {
        collector->dump(site, tensor);
      }
    }
    engine.inspect(1, *collector);
    const std::filesystem::path path = directory.path() / "all.safetensors";
    collector->write_dumps(path.string());
    SafetensorsFile file(path);
    std::set<double> deviations;
    for (const StatisticsRow& row : collector->rows()) {
      const TensorView* x = file.find(fmt::format("{}.{}", row.site, row.tensor));
      ASSERT_NE(x, nullptr) << row.site << " " << row.tensor;
      const TensorProbe probe({static_cast<const bf16*>(x->data), x->shape[0], x->shape[1]},
                              config.threads);
      SCOPED_TRACE(fmt::format("{} {} {} {}", row.site, row.tensor, row.gemm, row.recipe));
      EXPECT_EQ(row.elements, x->shape[0] * x->shape[1]);
      if (row.recipe.empty()) {
        const TensorStatistics expected = probe.measure();
        EXPECT_EQ(row.number(StatisticsNumber::kStd), expected.std);
        EXPECT_EQ(row.number(StatisticsNumber::kTokenKurtosisMax), expected.token_kurtosis_max);
        if (row.tensor != "input") deviations.insert(expected.std);
        continue;
      }
      const TensorRole role = tensor_role_from_name(row.tensor);
      const Gemm gemm = gemm_from_name(row.gemm);
      const Quantizer quantizer =
          quantizer_for(what_if_precision(row.recipe, "test", "recipe"), role, gemm);
      const QuantizationStatistics expected =
          probe.compare(quantizer, tile_scale(ScaleRule::kFp32, quantizer.format, probe.amax()));
      EXPECT_EQ(row.number(StatisticsNumber::kMse), expected.mse);
      EXPECT_EQ(row.number(StatisticsNumber::kTileRangeMean), expected.tile_range_mean);
    }
    EXPECT_EQ(deviations.size(), 3 * sites.size()) << "tensors of their own";
  }
}

TEST_F(Statistics, WeightsAreThoseOfTheCheckpoint) {
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 2);
  const std::filesystem::path checkpoint =
      write_checkpoint(engine, directory.path() / "checkpoints");
  StatisticsConfig one;
  one.match = {"model.layers.1.mlp.down_proj"};
  one.tensors = {"weight"};
  one.what_if = {"block", "mx:e2m1"};
  std::unique_ptr<StatisticsCollector> collector = engine.statistics(one, "test");
  engine.inspect(3, *collector);
  SafetensorsFile file(checkpoint / "model.safetensors");
  const TensorView* weight = file.find("model.layers.1.mlp.down_proj.weight");
  ASSERT_NE(weight, nullptr);
  const MatrixView matrix{static_cast<const bf16*>(weight->data), weight->shape[0],
                          weight->shape[1]};
  const TensorProbe probe(matrix, 1);
  const std::string& site = one.match[0];
  EXPECT_EQ(find(collector->rows(), site, "weight")->number(StatisticsNumber::kStd),
            probe.measure().std);
  const Quantizer block{Format::kE4m3, {128, 128}, ScaleRule::kPowerOfTwo};
  EXPECT_EQ(
      find(collector->rows(), site, "weight", "fprop", "block")->number(StatisticsNumber::kMse),
      probe.compare(block).mse);
  const Quantizer mx{Format::kE2m1, {32, 1}, ScaleRule::kPowerOfTwo};
  EXPECT_EQ(find(collector->rows(), site, "weight", "dgrad", "mx:e2m1")
                ->number(StatisticsNumber::kSqnrDb),
            probe.compare(mx).sqnr_db);
  EXPECT_EQ(collector->rows().size(), 5u);
}

// dW = dYᵀ·X of the dumped operands.
std::vector<double> product_of_dumps(const SafetensorsFile& file, const std::string& site) {
  const TensorView* dy = file.find(site + ".gradient");
  const TensorView* x = file.find(site + ".input");
  const int64_t out = dy->shape[1], in = x->shape[1];
  std::vector<double> product(static_cast<size_t>(out * in));
  for (int64_t token = 0; token < dy->shape[0]; ++token) {
    const bf16* left = static_cast<const bf16*>(dy->data) + token * out;
    const bf16* right = static_cast<const bf16*>(x->data) + token * in;
    for (int64_t i = 0; i < out * in; ++i) {
      product[static_cast<size_t>(i)] += static_cast<double>(to_float(left[i / in])) *
                                         static_cast<double>(to_float(right[i % in]));
    }
  }
  return product;
}

TEST_F(Statistics, WeightGradientsAreThoseOfTheFirstMicroBatch) {
  config.threads = 2;
  config.model.tie_embeddings = false;  // else the head's gradient is the embedding's too
  Engine engine(config);
  engine.initialize();
  StatisticsConfig asked;
  asked.tensors = {"weight_gradient"};
  asked.what_if = {"mx"};
  std::unique_ptr<StatisticsCollector> collector = engine.statistics(asked, "test");
  const std::vector<std::string> sites = config.model.sites();
  engine.train_step(nullptr);
  engine.inspect(2, *collector);
  const std::vector<StatisticsRow> inspected = collector->rows();
  ASSERT_EQ(inspected.size(), sites.size());  // nothing rounds them
  for (const std::string& site : sites) {
    for (const char* tensor : {"input", "gradient", "weight_gradient"}) {
      collector->dump(site, tensor);
    }
  }
  engine.train_step(collector.get());  // of two micro-batches
  const std::filesystem::path path = directory.path() / "gradients.safetensors";
  collector->write_dumps(path.string());
  const SafetensorsFile file(path);
  for (size_t i = 0; i < sites.size(); ++i) {
    const StatisticsRow* row = find(collector->rows(), sites[i], "weight_gradient");
    ASSERT_NE(row, nullptr) << sites[i];
    EXPECT_EQ(row->numbers[static_cast<size_t>(StatisticsNumber::kL2)],
              find(inspected, sites[i], "weight_gradient")->number(StatisticsNumber::kL2));
    const std::vector<double> expected = product_of_dumps(file, sites[i]);
    const TensorView* dumped = file.find(sites[i] + ".weight_gradient");
    ASSERT_NE(dumped, nullptr);
    ASSERT_EQ(row->elements, std::ssize(expected));
    double gap = 0, size = 0;
    for (size_t e = 0; e < expected.size(); ++e) {
      const double found = static_cast<double>(to_float(static_cast<const bf16*>(dumped->data)[e]));
      gap += (found - expected[e]) * (found - expected[e]);
      size += expected[e] * expected[e];
    }
    EXPECT_LT(std::sqrt(gap / size), 4e-3) << sites[i];
    EXPECT_NEAR(*row->number(StatisticsNumber::kL2), std::sqrt(size), 4e-3 * std::sqrt(size));
  }
}

TEST_F(Statistics, GateAndUpAreHeldAgainstEachOtherChannelByChannel) {
  for (const PrecisionPlan& plan : {PrecisionPlan::bf16(), PrecisionPlan::fp8(Recipe::kCurrent)}) {
    Engine engine(config);
    engine.set_plan(plan);
    engine.initialize();
    SafetensorsFile file(write_checkpoint(engine, directory.path() / "gates") /
                         "model.safetensors");
    StatisticsConfig weights;
    weights.match = {"*.up_proj", "*.down_proj"};  // the gate need not be looked at
    weights.tensors = {"weight"};
    std::unique_ptr<StatisticsCollector> collector = engine.statistics(weights, "test");
    engine.inspect(1, *collector);
    for (int layer = 0; layer < config.model.layers; ++layer) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      auto view = [&](const std::string& name) {
        const TensorView* tensor = file.find(mlp + name + ".weight");
        return MatrixView{static_cast<const bf16*>(tensor->data), tensor->shape[0],
                          tensor->shape[1]};
      };
      const RowCosines expected = row_cosines(view("gate_proj"), view("up_proj"), 1);
      const StatisticsRow* up = find(collector->rows(), mlp + "up_proj", "weight");
      ASSERT_NE(up, nullptr);
      EXPECT_EQ(up->number(StatisticsNumber::kGateCosineMean), expected.mean);
      EXPECT_EQ(up->number(StatisticsNumber::kGateCosineMax), expected.max);
      EXPECT_GT(expected.max, 0);
      EXPECT_LT(expected.max, 0.9);  // random rows of 32
      const StatisticsRow* down = find(collector->rows(), mlp + "down_proj", "weight");
      EXPECT_FALSE(down->number(StatisticsNumber::kGateCosineMax).has_value());
    }
  }
}

TEST_F(Statistics, AmaxIsHeldAgainstThoseOfTheLooksBefore) {
  Engine engine(config);
  engine.initialize();
  StatisticsConfig gradients;
  gradients.tensors = {"gradient"};
  std::unique_ptr<StatisticsCollector> collector = engine.statistics(gradients, "test");
  std::map<std::string, std::vector<double>> looks;
  int beyond_the_window = 0;
  for (size_t look = 0; look < 2 * StatisticsCollector::kWindowLooks; ++look) {
    engine.train_step(collector.get());
    for (const StatisticsRow& row : collector->rows()) {
      std::vector<double>& before = looks[row.site];
      const double amax = *row.number(StatisticsNumber::kAmax);
      const std::optional<double> ratio = row.number(StatisticsNumber::kAmaxOverWindow);
      const auto window =
          std::ssize(before) -
          std::min(std::ssize(before), static_cast<int64_t>(StatisticsCollector::kWindowLooks));
      EXPECT_EQ(ratio.has_value(), !before.empty());
      if (!before.empty()) {
        const double most = *std::max_element(before.begin() + window, before.end());
        EXPECT_EQ(ratio, amax / most) << row.site << " look " << look;
        beyond_the_window += most != *std::ranges::max_element(before);
      }
      before.push_back(amax);
    }
  }
  EXPECT_GT(beyond_the_window, 0) << "nothing that the bound of the window would change";
}

TEST_F(Statistics, DelayedScalesAreHeldAgainstTheCurrentOnes) {
  Fault shift;
  shift.kind = FaultKind::kScaleShift;
  shift.site = "model.layers.0.mlp.up_proj";
  shift.tensor = "input";
  shift.start_step = 3;
  shift.log2_factor = 4;
  config.faults = {shift};
  Engine engine(config);
  engine.set_plan(delayed_plan());
  engine.initialize();
  std::unique_ptr<StatisticsCollector> collector = engine.statistics({}, "test");
  auto rounding = [&] { return *find(collector->rows(), shift.site, "input", "fprop", "delayed"); };
  engine.train_step(collector.get());
  EXPECT_EQ(rounding().number(StatisticsNumber::kScaleError), 0.0);  // no history yet
  engine.train_step(collector.get());
  EXPECT_LT(std::abs(*rounding().number(StatisticsNumber::kScaleError)), 0.5);
  engine.train_step(collector.get());
  EXPECT_GT(rounding().number(StatisticsNumber::kScaleError), 7.0);
  EXPECT_GT(rounding().number(StatisticsNumber::kSaturation), 0.0);
}

TEST_F(Statistics, DumpsHoldTheTensorAndItsRoundedCopy) {
  Engine engine(config);
  engine.set_plan(PrecisionPlan::fp8(Recipe::kCurrent));
  engine.initialize();
  StatisticsConfig none;
  none.tensors = {};
  std::unique_ptr<StatisticsCollector> collector = engine.statistics(none, "test");
  const std::string site = "model.layers.0.self_attn.k_proj";
  collector->dump(site, "gradient");
  EXPECT_THROW(collector->dump("model.layers.9.mlp.up_proj", "gradient"), ConfigError);
  EXPECT_THROW(collector->dump(site, "amax"), ConfigError);
  engine.inspect(1, *collector);
  const std::filesystem::path path = directory.path() / "dump.safetensors";
  collector->write_dumps(path.string());
  SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), 5u);  // and twice rounded values and a scale
  const int64_t tokens = int64_t{config.batch.sequences} * config.batch.tokens;
  const int64_t out = config.model.width / config.model.heads * config.model.kv_heads;
  const TensorView& x = file.require(site + ".gradient", "BF16", {tokens, out});
  const TensorView& q = file.require(site + ".gradient.dgrad.rounded", "BF16", {tokens, out});
  const TensorView& s = file.require(site + ".gradient.dgrad.scales", "F32", {1, 1});
  double errors = 0;
  for (int64_t i = 0; i < tokens * out; ++i) {
    const double exact = static_cast<double>(to_float(static_cast<const bf16*>(x.data)[i]));
    const double back = static_cast<double>(to_float(static_cast<const bf16*>(q.data)[i])) /
                        static_cast<double>(*static_cast<const float*>(s.data));
    errors += (back - exact) * (back - exact);
  }
  const StatisticsRow* row = find(collector->rows(), site, "gradient", "dgrad", "current");
  ASSERT_NE(row, nullptr);
  const double mse = errors / static_cast<double>(tokens * out);
  EXPECT_NEAR(*row->number(StatisticsNumber::kMse), mse, 1e-9 * mse);
  EXPECT_GT(mse, 0);
}

TEST_F(Statistics, WrongChoicesAreNamed) {
  Engine engine(config);
  auto refused = [&](const StatisticsConfig& wrong) -> std::string {
    try {
      engine.statistics(wrong, "t.toml");
    } catch (const ConfigError& error) {
      return error.key() + "=" + error.value();
    }
    return "accepted";
  };
  StatisticsConfig c;
  c.match = {"model.layers.7.*"};
  EXPECT_EQ(refused(c), "statistics.match=model.layers.7.*");
  c.match = {"model.{a"};
  EXPECT_EQ(refused(c), "statistics.match=model.{a");
  c = {};
  c.tensors = {"outputs"};
  EXPECT_EQ(refused(c), "statistics.tensors=outputs");
  c = {};
  for (const char* recipe : {"blocks", "none", "mx:e9m9", "mx:fp32", ""}) {
    c.what_if = {recipe};
    EXPECT_EQ(refused(c), std::string("statistics.what_if=") + recipe);
  }
  c.what_if = {"none:e8m4", "current:e5m2", "block:e4m3/e5m2"};
  EXPECT_EQ(refused(c), "accepted");
  c = {};
  c.sites_max = 3;
  EXPECT_EQ(refused(c), "statistics.sites_max=3");
  config.compute = Compute::kFp32;
  EXPECT_THROW(Engine(config).statistics({}, "t.toml"), ConfigError);
}

}  // namespace
}  // namespace gnomon::test
