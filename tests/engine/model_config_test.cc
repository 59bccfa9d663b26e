#include "trainer/engine/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/parameters.h"

namespace gnomon::test {
namespace {

TEST(ModelConfig, CountsParameters) {
  ModelConfig model = small_model();
  int64_t layer = 32 * 32 * 2 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32;
  EXPECT_EQ(model.parameters(), 2 * layer + 64 * 32 + 32);
  model.tie_embeddings = false;
  EXPECT_EQ(model.parameters(), 2 * layer + 2 * 64 * 32 + 32);
  model.qkv_bias = true;
  EXPECT_EQ(model.parameters(), 2 * (layer + 32 + 16 + 16) + 2 * 64 * 32 + 32);
}

TEST(ModelConfig, ListsSitesInModelOrder) {
  std::vector<std::string> sites = small_model().sites();
  ASSERT_EQ(sites.size(), 15u);
  EXPECT_EQ(sites[0], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(sites[6], "model.layers.0.mlp.down_proj");
  EXPECT_EQ(sites[7], "model.layers.1.self_attn.q_proj");
  EXPECT_EQ(sites[14], "lm_head");
}

TEST(ModelConfig, RoundTripsThroughHuggingFacesJson) {
  for (bool bias : {false, true}) {
    ModelConfig model = small_model();
    model.qkv_bias = bias;
    model.tie_embeddings = bias;
    std::string text = model.to_hf_json();
    EXPECT_THAT(text, testing::HasSubstr(bias ? "\"Qwen2ForCausalLM\"" : "\"LlamaForCausalLM\""));
    EXPECT_EQ(ModelConfig::from_hf_json(text, "config.json"), model);
  }
}

TEST(ModelConfig, ReadsAConfigAsTransformersWritesIt) {
  ModelConfig model = ModelConfig::from_hf_json(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 256,
    "initializer_range": 0.02, "intermediate_size": 688, "max_position_embeddings": 2048, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 8, "num_hidden_layers": 6, "pretraining_tp": 1,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "vocab_size": 32000})",
                                                "config.json");
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.layers, 6);
  EXPECT_DOUBLE_EQ(model.norm_eps, 1e-6);
  EXPECT_FALSE(model.tie_embeddings);
}

TEST(ModelConfig, RefusesWhatTheModelDoesNotCompute) {
  std::string good = small_model().to_hf_json();
  auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    EXPECT_THROW(ModelConfig::from_hf_json(text, "config.json"), Error) << to;
  };
  EXPECT_NO_THROW(ModelConfig::from_hf_json(good, "config.json"));
  refused("\"llama\"", "\"gpt2\"");
  refused("\"silu\"", "\"gelu\"");
  refused("\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"linear\"}");
  refused("\"attention_bias\":false", "\"attention_bias\":true");
  refused("\"hidden_size\":32", "\"hidden_size\":\"wide\"");
  refused("\"hidden_size\":32", "\"hidden_size\":0");
  refused("{", "");
}

TEST(ModelConfig, NamesTheWrongValueAndWhatIsAccepted) {
  ModelConfig model = small_model();
  model.kv_heads = 3;
  try {
    model.check();
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "kv_heads");
    EXPECT_EQ(error.value(), "3");
    EXPECT_EQ(error.accepted(), "a divisor of heads (4)");
  }
  model = small_model();
  model.heads = model.kv_heads = 32;  // one element per head: nothing to rotate
  EXPECT_THROW(model.check(), ConfigError);
}

TEST(ParameterLayout, AlignsEveryParameterAndSeparatesWhatDecays) {
  ModelConfig model = small_model();
  model.qkv_bias = true;
  model.vocabulary = 61;
  ParameterLayout layout(model);
  int64_t end = 0;
  for (const Parameter& parameter : layout.all()) {
    EXPECT_EQ(parameter.offset % 32, 0) << parameter.name;
    EXPECT_GE(parameter.offset, end) << parameter.name;
    EXPECT_EQ(parameter.shape.size() == 2, parameter.offset < layout.decayed()) << parameter.name;
    end = parameter.offset + parameter.size;
  }
  EXPECT_LE(end, layout.elements());
}

}  // namespace
}  // namespace gnomon::test
