// The engine learns, and a step that is not finite harms nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/philox.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

// Bytes of sentences over a small vocabulary, frequent words more often than rare ones.
std::vector<uint32_t> sentences(uint64_t key, size_t bytes) {
  const std::vector<std::string> words = {"the",  "of",    "and",   "shadow", "gnomon", "light",
                                          "hour", "casts", "a",     "stone",  "dial",   "noon",
                                          "line", "falls", "moves", "slowly"};
  std::vector<uint32_t> tokens;
  for (uint64_t i = 0; tokens.size() < bytes; ++i) {
    float u = philox_uniform(philox(key, 0, i)[0]);
    size_t word = static_cast<size_t>(u * u * static_cast<float>(words.size()));
    for (char c : words[word]) tokens.push_back(static_cast<uint32_t>(c));
    tokens.push_back(i % 9 == 8 ? '.' : ' ');
  }
  tokens.resize(bytes);
  return tokens;
}

// In nats: the best loss of a model that knows only how frequent each byte is.
double letter_entropy(const std::vector<uint32_t>& tokens) {
  std::map<uint32_t, double> counts;
  for (uint32_t token : tokens) counts[token] += 1;
  double entropy = 0;
  for (const auto& [token, count] : counts) {
    double share = count / static_cast<double>(tokens.size());
    entropy -= share * std::log(share);
  }
  return entropy;
}

EngineConfig text_engine(const std::filesystem::path& directory) {
  EngineConfig config = small_engine(directory);
  config.model.vocabulary = 257;
  config.batch = {.sequences = 4, .tokens = 32, .accumulation = 2};
  config.optimizer.learning_rate = 1e-2;
  config.optimizer.total_steps = 120;
  config.data = directory / "text";
  write_token_dataset(config.data, {sentences(1, 20000)}, sentences(2, 2000), 257);
  return config;
}

class Training : public testing::TestWithParam<const char*> {};

TEST_P(Training, LossFallsOnTextTowardsItsEntropy) {
  TemporaryDirectory directory;
  Engine engine(text_engine(directory.path()));
  PrecisionPlan plan = PrecisionPlan::parse(GetParam());
  engine.set_plan(plan);
  engine.initialize();
  double before = engine.evaluate(PrecisionPlan::bf16());
  EXPECT_NEAR(before, std::log(257.0), 0.2);
  double last = 0;
  for (int step = 1; step <= 120; ++step) {
    StepResult result = engine.train_step();
    EXPECT_EQ(result.step, step);
    EXPECT_TRUE(result.finite);
    EXPECT_EQ(result.tokens, 256);
    EXPECT_GT(result.seconds, 0);
    last = result.loss;
  }
  double heldout = engine.evaluate(PrecisionPlan::bf16());
  EXPECT_LT(heldout,
            letter_entropy(sentences(1, 20000)) - 0.3);  // more than how frequent each letter is
  EXPECT_NEAR(heldout, last, 0.3);
  EXPECT_NEAR(engine.evaluate(plan), heldout, 0.05);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Training,
    testing::Values("", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n",
                    "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\n"));

// Weights and activations grow as the model learns. A history that stops while they are small makes
// them saturate from then on: FP8 loses what BF16 keeps.
TEST(FrozenAmax, HarmsTheHeldOutLossOfFp8AndNotOfBf16) {
  TemporaryDirectory directory;
  EngineConfig config = text_engine(directory.path());
  PrecisionPlan delayed = PrecisionPlan::parse(
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\namax_history = 4\n");
  auto heldout = [&](const std::vector<Fault>& faults, const PrecisionPlan& plan) {
    EngineConfig with = config;
    with.faults = faults;
    Engine engine(with);
    engine.set_plan(plan);
    engine.initialize();
    train_hashes(engine, 120);
    return engine.evaluate(plan);
  };
  auto frozen = [](const std::string& site, const std::string& tensor) {
    return Fault{.kind = FaultKind::kFrozenAmax, .site = site, .tensor = tensor, .start_step = 2};
  };
  std::vector<Fault> head_weight = {frozen("lm_head", "weight")};
  std::vector<Fault> down_inputs = {frozen("model.layers.0.mlp.down_proj", "input"),
                                    frozen("model.layers.1.mlp.down_proj", "input")};
  double bf16_loss = heldout({}, PrecisionPlan::bf16());
  double fp8_loss = heldout({}, delayed);
  EXPECT_NEAR(fp8_loss, bf16_loss, 0.12);  // 0.082 with the sanitizers, whose sums are others
  EXPECT_GT(heldout(head_weight, delayed), fp8_loss + 0.15);
  EXPECT_GT(heldout(down_inputs, delayed), fp8_loss + 0.2);
  EXPECT_EQ(heldout(head_weight, PrecisionPlan::bf16()), bf16_loss);
  EXPECT_EQ(heldout(down_inputs, PrecisionPlan::bf16()), bf16_loss);
}

TEST(NonFiniteStep, ChangesNoWeightAndIsReported) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  // Bit 30 turns the norm's 1.0 into infinity.
  config.faults = {{.kind = FaultKind::kBitFlip,
                    .site = "model.norm.weight",
                    .start_step = 1,
                    .element = 5,
                    .bit = 30}};
  config.optimizer.learning_rate = 0;
  for (const PrecisionPlan& plan : {PrecisionPlan::bf16(), PrecisionPlan::fp8(Recipe::kDelayed)}) {
    Engine engine(config);
    engine.set_plan(plan);
    engine.initialize();
    StepResult first = engine.train_step();
    EXPECT_TRUE(first.finite);
    CheckpointContent state = engine.checkpoint();
    std::vector<std::string> before;
    for (const TensorView& tensor : state.optimizer) {
      before.emplace_back(static_cast<const char*>(tensor.data),
                          static_cast<size_t>(tensor.bytes()));
    }
    for (int step = 2; step <= 3; ++step) {
      StepResult result = engine.train_step();
      EXPECT_FALSE(result.finite);
      EXPECT_FALSE(std::isfinite(result.loss) && std::isfinite(result.grad_norm));
      EXPECT_EQ(result.step, step);  // the data goes on
      EXPECT_EQ(result.weights_hash, first.weights_hash);
    }
    for (size_t i = 0; i < before.size(); ++i) {
      const TensorView& tensor = state.optimizer[i];
      EXPECT_EQ(before[i], std::string(static_cast<const char*>(tensor.data),
                                       static_cast<size_t>(tensor.bytes())))
          << tensor.name;
    }
  }
}

TEST(Engine, ListsItsArenasWithTheirSizes) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  Engine engine(config);
  std::set<std::string> names;
  int64_t optimizer = 0;
  for (const ArenaSize& arena : engine.arenas()) {
    names.insert(arena.name);
    EXPECT_GT(arena.bytes, 0) << arena.name;
    if (arena.name == "optimizer") optimizer = arena.bytes;
  }
  EXPECT_EQ(names, (std::set<std::string>{"weights", "gradients", "activations", "workspace",
                                          "optimizer"}));
  EXPECT_GE(optimizer, config.model.parameters() * 12);
  EXPECT_EQ(engine.heldout_tokens(), 80);
  EXPECT_EQ(engine.fingerprint().threads, 1);
  EXPECT_EQ(engine.fingerprint().backend, "cpu");
}

TEST(Engine, RefusesAConfigurationByItsKey) {
  TemporaryDirectory directory;
  EngineConfig good = small_engine(directory.path());
  auto key_of = [](const EngineConfig& config) -> std::string {
    try {
      Engine engine(config);
    } catch (const ConfigError& error) {
      return error.key();
    }
    return "accepted";
  };
  EXPECT_EQ(key_of(good), "accepted");
  EngineConfig bad = good;
  bad.model.vocabulary = 63;  // the data has 64
  EXPECT_EQ(key_of(bad), "vocabulary");
  bad = good;
  bad.batch.tokens = 65;  // beyond the context
  EXPECT_EQ(key_of(bad), "tokens");
  bad = good;
  bad.model.context = 512;
  bad.batch.tokens = 300;  // longer than the held-out split
  EXPECT_EQ(key_of(bad), "tokens");
  bad = good;
  bad.model.heads = 5;
  EXPECT_EQ(key_of(bad), "heads");
  bad = good;
  bad.model.kv_heads = 3;
  EXPECT_EQ(key_of(bad), "kv_heads");
  bad = good;
  bad.optimizer.beta2 = 1.0;
  EXPECT_EQ(key_of(bad), "beta2");
  bad = good;
  bad.optimizer.learning_rate = std::nan("");
  EXPECT_EQ(key_of(bad), "learning_rate");
  bad = good;
  bad.threads = 0;
  EXPECT_EQ(key_of(bad), "threads");
  bad = good;
  bad.data = directory.path() / "nothing";
  EXPECT_THROW(Engine{bad}, Error);
}

TEST(Engine, RefusesAPlanWhoseRuleMatchesNothingAndKeepsItsOwn) {
  TemporaryDirectory directory;
  Engine engine(small_engine(directory.path()));
  engine.set_plan(PrecisionPlan::fp8());
  PrecisionPlan wrong =
      PrecisionPlan::parse("[[rule]]\nmatch = \"model.layers.*.mlp.q_proj\"\ngemms = \"fp8\"\n");
  EXPECT_THROW(engine.set_plan(wrong), ConfigError);
  EXPECT_EQ(engine.plan().to_toml(), PrecisionPlan::fp8().to_toml());
}

}  // namespace
}  // namespace gnomon::test
