// What is in a checkpoint, and that a wrong one is refused before anything changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>

#include "base/errors.h"
#include "base/files.h"
#include "numerics/formats.h"
#include "storage/checkpoint_store.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/json_fields.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

const char* const kDelayed = "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\n";

class EngineState : public testing::Test {
 protected:
  EngineState() : config(small_engine(directory.path())), engine(config) {
    engine.set_plan(PrecisionPlan::parse(kDelayed));
    engine.initialize();
    train_hashes(engine, 3);
  }

  // Writes the content as a checkpoint of its own and returns what loading it into `target` says.
  std::string load_error(const CheckpointContent& content, Engine& target) {
    CheckpointStore store(directory.path() / "changed");
    std::filesystem::path path = store.write(1, ++written, content).path;
    try {
      target.load(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void expect_refused(const CheckpointContent& content, const std::string& part) {
    Engine target(config);
    target.initialize();
    uint64_t hash = target.weights_hash();
    std::string state = target.checkpoint().trainer_state_json;
    EXPECT_THAT(load_error(content, target), testing::HasSubstr(part));
    EXPECT_EQ(target.weights_hash(), hash);
    EXPECT_EQ(target.step(), 0);
    EXPECT_EQ(target.checkpoint().trainer_state_json, state);
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }

  TemporaryDirectory directory;
  EngineConfig config;
  Engine engine;
  int64_t written = 0;
};

TEST_F(EngineState, HasHuggingFaceNamesAndShapes) {
  CheckpointContent content = engine.checkpoint();
  std::vector<std::string> names;
  for (const TensorView& tensor : content.model) {
    names.push_back(tensor.name);
    EXPECT_EQ(tensor.dtype, "BF16");
  }
  EXPECT_THAT(
      names,
      testing::UnorderedElementsAre(
          "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
          "model.layers.0.post_attention_layernorm.weight",
          "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
          "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
          "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
          "model.layers.0.mlp.down_proj.weight", "model.layers.1.input_layernorm.weight",
          "model.layers.1.post_attention_layernorm.weight",
          "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
          "model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight",
          "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
          "model.layers.1.mlp.down_proj.weight"));
  EXPECT_EQ(content.optimizer.size(), 3 * content.model.size());
  auto k =
      std::ranges::find(content.model, "model.layers.0.self_attn.k_proj.weight", &TensorView::name);
  EXPECT_EQ(k->shape, (std::vector<int64_t>{16, 32}));
  EXPECT_EQ(ModelConfig::from_hf_json(content.config_json, "config.json"), config.model);
}

TEST_F(EngineState, WorkingWeightsAreTheMastersRounded) {
  CheckpointContent content = engine.checkpoint();
  for (size_t i = 0; i < content.model.size(); ++i) {
    ASSERT_EQ(content.optimizer[i].name, "master." + content.model[i].name);
    const auto* master = static_cast<const float*>(content.optimizer[i].data);
    const auto* weight = static_cast<const bf16*>(content.model[i].data);
    for (int64_t j = 0; j < content.model[i].bytes() / 2; ++j)
      ASSERT_EQ(weight[j].bits, to_bf16(master[j]).bits);
  }
}

TEST_F(EngineState, QkvAndGateUpWeightsAreNeighbours) {
  CheckpointContent content = engine.checkpoint();
  auto address = [&](const std::string& name) {
    return static_cast<const char*>(
        std::ranges::find(content.model, name, &TensorView::name)->data);
  };
  std::string layer = "model.layers.1.";
  EXPECT_EQ(address(layer + "self_attn.k_proj.weight") - address(layer + "self_attn.q_proj.weight"),
            32 * 32 * 2);
  EXPECT_EQ(address(layer + "self_attn.v_proj.weight") - address(layer + "self_attn.k_proj.weight"),
            16 * 32 * 2);
  EXPECT_EQ(address(layer + "mlp.up_proj.weight") - address(layer + "mlp.gate_proj.weight"),
            48 * 32 * 2);
}

TEST_F(EngineState, RoundTripsEveryByteIncludingTheScalingState) {
  std::filesystem::path path = write_checkpoint(engine, directory.path() / "checkpoints");
  Engine other(config);
  other.load(path);
  CheckpointContent a = engine.checkpoint();
  CheckpointContent b = other.checkpoint();
  EXPECT_THAT(a.trainer_state_json, testing::HasSubstr("\"pushes\":3"));
  EXPECT_EQ(a.trainer_state_json, b.trainer_state_json);
  EXPECT_EQ(a.config_json, b.config_json);
  for (auto member : {&CheckpointContent::model, &CheckpointContent::optimizer}) {
    for (size_t i = 0; i < (a.*member).size(); ++i) {
      const TensorView& x = (a.*member)[i];
      const TensorView& y = (b.*member)[i];
      EXPECT_EQ(x.name, y.name);
      EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())), 0) << x.name;
    }
  }
  EXPECT_EQ(read_engine_config(path).to_json(), config.to_json());
}

TEST_F(EngineState, WithoutTakePlanTheEngineKeepsItsPlanAndWhatFitsIt) {
  std::filesystem::path path = write_checkpoint(engine, directory.path() / "checkpoints");
  PrecisionPlan pinned = PrecisionPlan::parse(kDelayed).with_bf16_sites({"lm_head"});
  Engine other(config);
  other.set_plan(pinned);
  other.load(path, false);
  EXPECT_EQ(other.plan().to_toml(), pinned.to_toml());
  Engine expected(config);
  expected.load(path);
  expected.set_plan(pinned);
  EXPECT_EQ(other.checkpoint().trainer_state_json, expected.checkpoint().trainer_state_json);
  EXPECT_EQ(train_hashes(other, 3), train_hashes(expected, 3));
}

TEST_F(EngineState, AMissingOrExtraOrMisshapenTensorIsRefused) {
  CheckpointContent content = engine.checkpoint();
  CheckpointContent bad = content;
  bad.model.pop_back();
  expect_refused(bad, content.model.back().name);
  bad = content;
  bad.optimizer.erase(bad.optimizer.begin() + 30);
  expect_refused(bad, content.optimizer[30].name);
  bad = content;
  std::vector<float> extra(4);
  bad.optimizer.push_back({"exp_avg_max", "F32", {4}, extra.data()});
  expect_refused(bad, "exp_avg_max");
  bad = content;
  std::swap(bad.model[1].shape[0], bad.model[5].shape[0]);
  expect_refused(bad, content.model[1].name);
  bad = content;
  bad.model[3].dtype = "F16";
  bad.model[3].dtype = "U8";
  bad.model[3].shape = {content.model[3].bytes()};
  expect_refused(bad, content.model[3].name);
}

TEST_F(EngineState, WeightsThatAreNotTheStatesAreRefused) {
  CheckpointContent content = engine.checkpoint();
  content.trainer_state_json =
      replaced(content.trainer_state_json, "\"weights_hash\":\"", "\"weights_hash\":\"0");
  expect_refused(content, "hash");
}

TEST_F(EngineState, ADamagedTrainerStateIsRefused) {
  CheckpointContent good = engine.checkpoint();
  auto refuse = [&](const std::string& from, const std::string& to, const std::string& part) {
    CheckpointContent bad = good;
    bad.trainer_state_json = replaced(good.trainer_state_json, from, to);
    expect_refused(bad, part);
  };
  refuse("\"format_version\":1", "\"format_version\":2", "format_version");
  refuse("{", "[", "trainer_state.json");
  refuse("\"step\":3", "\"step\":\"three\"", "step");
  refuse("\"pushes\":3", "\"pushes\":1", "history");
  refuse("model.layers.0.self_attn.q_proj\"", "model.layers.9.self_attn.q_proj\"", "site");
  refuse("\"data_hash\":\"", "\"data_hash\":\"x", "data_hash");
  refuse("\"learning_rate\":\"", "\"learning_rate\":\"fast", "learning_rate");
}

TEST_F(EngineState, AnotherModelShapeIsRefused) {
  std::filesystem::path path = write_checkpoint(engine, directory.path() / "checkpoints");
  EngineConfig other = config;
  other.model.rope_theta = 5000;
  Engine target(other);
  EXPECT_THROW(target.load(path), ConfigError);
}

TEST_F(EngineState, ADamagedFileIsRefusedByTheManifest) {
  std::filesystem::path path = write_checkpoint(engine, directory.path() / "checkpoints");
  std::string bytes = read_file(path / "optimizer.safetensors");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file_atomically(path / "optimizer.safetensors", bytes);
  EXPECT_THROW(engine.load(path), CheckpointError);
  std::filesystem::remove(path / "trainer_state.json");
  EXPECT_THROW(read_engine_config(path), CheckpointError);
}

TEST(EngineConfigJson, RoundTripsEveryFieldExactly) {
  EngineConfig config;
  config.model = small_model();
  config.model.qkv_bias = true;
  config.model.tie_embeddings = false;
  config.model.rope_theta = 500000.1;
  config.model.norm_eps = 1.1e-6;
  config.model.init_std = 0.1 / 3;
  config.batch = {.sequences = 3, .tokens = 64, .accumulation = 7};
  config.optimizer = {.learning_rate = 3e-4 * 1.1,
                      .min_ratio = 0.07,
                      .warmup_steps = 13,
                      .total_steps = 77,
                      .beta1 = 0.91,
                      .beta2 = 0.97,
                      .eps = 1e-9 / 3,
                      .weight_decay = 0.033,
                      .clip = 1.0 / 7};
  config.data = "some \"where\"";
  config.seed = -5;
  config.threads = 3;
  config.heldout_sequences = 9;
  config.faults = {{FaultKind::kScaleShift, "lm_head", "weight", 3, 9, -4, 0, 30},
                   {FaultKind::kBitFlip, "model.norm.weight", "input", 3, 0, 0, 31, 2}};
  EngineConfig back = EngineConfig::from_json(config.to_json(), "test");
  EXPECT_EQ(back.to_json(), config.to_json());
  EXPECT_EQ(back.model, config.model);
  EXPECT_EQ(back.batch, config.batch);
  EXPECT_EQ(back.optimizer, config.optimizer);
  EXPECT_EQ(back.data, config.data);
  EXPECT_EQ(back.seed, -5);
  EXPECT_EQ(back.threads, 3);
  EXPECT_EQ(back.heldout_sequences, 9);
  ASSERT_EQ(back.faults.size(), 2u);
  EXPECT_EQ(back.faults[0].log2_factor, -4);
  EXPECT_EQ(back.faults[0].end_step, 9);
  EXPECT_EQ(back.faults[1].element, 31);
  EXPECT_EQ(back.faults[1].bit, 2);
}

TEST(JsonFields, ExactTextKeepsEveryBit) {
  for (double value : {3e-4, 1.0 / 3, 1e300, 5e-324, 0.1 + 0.2, -0.0}) {
    boost::json::value object = boost::json::object{{"x", exact_text(value)}};
    EXPECT_EQ(JsonFields(object, "test").exact("x"), value);
  }
}

}  // namespace
}  // namespace gnomon::test
