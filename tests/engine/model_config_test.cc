#include "trainer/engine/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

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
  model.qkv_bias = false;
  model.qk_norm = true;
  EXPECT_EQ(model.parameters(), 2 * (layer + 8 + 8) + 2 * 64 * 32 + 32);
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

TEST(ModelConfig, RefusesWhatTheModelDoesNotComputeNamingKeyValueAndWhatIsAccepted) {
  struct Refused {
    std::string key, value, named, accepted;
  };
  const std::vector<Refused> cases = {
      {"model_type", R"("gpt2")", "model_type", "llama, qwen2, qwen3"},
      {"hidden_act", R"("gelu")", "hidden_act", R"("silu")"},
      {"attention_bias", "true", "attention_bias", "false"},
      {"mlp_bias", "true", "mlp_bias", "false"},
      {"attention_dropout", "0.1", "attention_dropout", "0"},
      {"use_sliding_window", "true", "use_sliding_window", "false"},
      {"layer_types", R"(["full_attention","sliding_attention"])", "layer_types",
       R"("full_attention")"},
      {"quantization_config", R"({"bits":4})", "quantization_config", "null"},
      {"head_dim", "7", "head_dim", "even"},
      {"head_dim", "0", "head_dim", "2 to 4096"},
      {"head_dim", "-8", "head_dim", "0 to 4096"},
      {"rope_scaling", R"({"type":"dynamic","factor":2.0})", "rope_scaling.type", R"("llama3")"},
      {"rope_scaling", R"({"rope_type":"yarn","factor":2.0})", "rope_scaling.rope_type",
       R"("linear")"},
      {"rope_scaling", R"({"factor":2.0})", "rope_scaling.factor", "rope_theta"},
      {"rope_scaling", R"({"type":"linear"})", "rope_scaling.factor", "1 to"},
      {"rope_scaling", R"({"type":"linear","factor":0.5})", "rope_scaling.factor", "1 to"},
      {"rope_scaling", R"({"type":"linear","factor":2,"beta_fast":32})", "rope_scaling.beta_fast",
       "factor alone"},
      {"rope_parameters", R"({"rope_type":"llama3","rope_theta":10000.0})",
       "rope_parameters.factor", "a number of 1"},
      {"rope_parameters",
       R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})",
       "rope_parameters.high_freq_factor", "more than low_freq_factor"},
      {"rope_parameters",
       R"({"rope_type":"llama3","factor":8,"low_freq_factor":"1","high_freq_factor":4})",
       "rope_parameters.low_freq_factor", "a number"},
      {"rope_parameters",
       R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
           "original_max_position_embeddings":0})",
       "original_max_position_embeddings", "1 to 1048576"},
      {"rope_scaling", R"({"type":"linear","factor":2.0})", "rope_parameters",
       "only one of the two"},
      {"rope_parameters", R"({"rope_type":"default","rope_theta":5000.0})",
       "rope_parameters.rope_theta", "10000"},
      {"partial_rotary_factor", "0.5", "partial_rotary_factor", "1"},
      {"num_attention_heads", "5", "num_attention_heads", "divisor"},
      {"hidden_size", "0", "hidden_size", "2 to 65536"},
      {"num_hidden_layers", "4611686018427387904", "num_hidden_layers", "whole number"},
      {"hidden_size", R"("wide")", "hidden_size", "whole number"},
      {"layer_types", R"("full_attention")", "layer_types", "array"}};
  boost::json::value good = boost::json::parse(small_model().to_hf_json());
  EXPECT_NO_THROW(ModelConfig::from_hf_json(boost::json::serialize(good), "config.json"));
  for (const Refused& wrong : cases) {
    boost::json::value changed = good;
    changed.as_object()[wrong.key] = boost::json::parse(wrong.value);
    try {
      ModelConfig::from_hf_json(boost::json::serialize(changed), "dir/config.json");
      ADD_FAILURE() << "accepted " << wrong.key << " = " << wrong.value;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("dir/config.json"));
      EXPECT_THAT(error.what(), testing::HasSubstr(wrong.named)) << wrong.value;
      EXPECT_THAT(error.what(), testing::HasSubstr(wrong.accepted)) << wrong.value;
    }
  }
  EXPECT_THROW(ModelConfig::from_hf_json("", "config.json"), FormatError);
}

TEST(ModelConfig, ReadsTheRotaryBaseWhereverTransformersPutIt) {
  boost::json::value plain = boost::json::parse(small_model().to_hf_json());
  auto read = [&](const char* top, const char* scaling, const char* parameters) {
    boost::json::value changed = plain;
    boost::json::object& object = changed.as_object();
    for (auto [key, value] : {std::pair{"rope_theta", top}, std::pair{"rope_scaling", scaling},
                              std::pair{"rope_parameters", parameters}}) {
      object.erase(key);
      if (value != nullptr) object[key] = boost::json::parse(value);
    }
    return ModelConfig::from_hf_json(boost::json::serialize(changed), "config.json").rope_theta;
  };
  EXPECT_EQ(read("500000.0", nullptr, nullptr), 500000);
  EXPECT_EQ(read("500000.0", "null", nullptr), 500000);
  EXPECT_EQ(read("1000000", R"({"rope_type":"default"})", nullptr), 1000000);
  EXPECT_EQ(read(nullptr, nullptr, R"({"rope_theta":1000000.0,"rope_type":"default"})"), 1000000);
  EXPECT_EQ(read("5e5", nullptr, R"({"rope_theta":5e5,"rope_type":"default"})"), 500000);
  EXPECT_EQ(read(nullptr, nullptr, nullptr), 10000);
}

TEST(ModelConfig, ScaledRotationAndWideHeadsRoundTrip) {
  ModelConfig model = small_model();
  model.head_width = 12;
  for (const RopeScaling& scaling : {RopeScaling{.kind = RopeScaling::Kind::kLinear, .factor = 2.5},
                                     RopeScaling{RopeScaling::Kind::kLlama3, 8, 1.5, 4, 4096}}) {
    model.rope_scaling = scaling;
    const ModelConfig again = ModelConfig::from_hf_json(model.to_hf_json(), "config.json");
    EXPECT_EQ(again, model);
    EXPECT_EQ(again.attention_width(), 48);
    EXPECT_EQ(again.kv_width(), 24);
    // As transformers before 5 reads it, and since.
    for (const char* other : {"rope_scaling", "rope_parameters"}) {
      boost::json::value half = boost::json::parse(model.to_hf_json());
      half.as_object().erase(other);
      EXPECT_EQ(ModelConfig::from_hf_json(boost::json::serialize(half), "config.json"), model);
    }
  }
  // A head_dim that says nothing new is none.
  boost::json::value plain = boost::json::parse(small_model().to_hf_json());
  plain.as_object()["head_dim"] = 8;
  EXPECT_EQ(ModelConfig::from_hf_json(boost::json::serialize(plain), "config.json"), small_model());
}

// As Qwen3 0.6B's own file has it.
TEST(ModelConfig, ReadsQwen3) {
  const std::string text = R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";
  const ModelConfig model = ModelConfig::from_hf_json(text, "config.json");
  EXPECT_TRUE(model.qk_norm);
  EXPECT_FALSE(model.qkv_bias);
  EXPECT_EQ(model.head_dim(), 128);
  EXPECT_EQ(model.attention_width(), 2048);
  EXPECT_EQ(model.parameters(), 596049920);
  EXPECT_EQ(ModelConfig::from_hf_json(model.to_hf_json(), "config.json"), model);
  // Its class takes heads of 128 where the file does not say.
  boost::json::value silent = boost::json::parse(text);
  silent.as_object().erase("head_dim");
  EXPECT_EQ(ModelConfig::from_hf_json(boost::json::serialize(silent), "config.json"), model);
  silent.as_object()["attention_bias"] = true;
  EXPECT_THROW(ModelConfig::from_hf_json(boost::json::serialize(silent), "config.json"),
               ConfigError);
  // Heads as wide as width / heads are written down all the same.
  ModelConfig narrow = small_model();
  narrow.qk_norm = true;
  EXPECT_EQ(ModelConfig::from_hf_json(narrow.to_hf_json(), "config.json"), narrow);
}

TEST(ModelConfig, RefusesAMixtureOfFamilies) {
  ModelConfig model = small_model();
  model.qkv_bias = model.qk_norm = true;
  try {
    model.check();
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "qkv_bias");
    EXPECT_THAT(error.accepted(),
                testing::HasSubstr("false where qk_norm is true: none of llama, qwen2, qwen3"));
  }
}

// As Llama 3.1 8B's own file has it.
TEST(ModelConfig, ReadsLlama31) {
  const ModelConfig model = ModelConfig::from_hf_json(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})",
                                                      "config.json");
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_EQ(model.rope_scaling, (RopeScaling{RopeScaling::Kind::kLlama3, 8, 1, 4, 8192}));
  EXPECT_EQ(model.head_dim(), 128);
  EXPECT_EQ(model.head_width, 0);
}

TEST(ModelConfig, AcceptsWhatIsSwitchedOff) {
  boost::json::value config = boost::json::parse(small_model().to_hf_json());
  boost::json::object& object = config.as_object();
  object["model_type"] = "qwen2";
  object["use_sliding_window"] = false;
  object["sliding_window"] = 4096;  // of no effect
  object["layer_types"] = {"full_attention", "full_attention"};
  object["head_dim"] = nullptr;
  object["attention_dropout"] = 0.0;
  object["quantization_config"] = nullptr;
  object["num_key_value_heads"] = nullptr;
  ModelConfig model = ModelConfig::from_hf_json(boost::json::serialize(config), "config.json");
  EXPECT_TRUE(model.qkv_bias);
  EXPECT_EQ(model.kv_heads, model.heads);
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

class Layouts : public testing::TestWithParam<bool ModelConfig::*> {};

TEST_P(Layouts, AlignEveryParameterAndSeparateWhatDecays) {
  ModelConfig model = small_model();
  model.*GetParam() = true;
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

INSTANTIATE_TEST_SUITE_P(Families, Layouts,
                         testing::Values(&ModelConfig::qkv_bias, &ModelConfig::qk_norm));

}  // namespace
}  // namespace gnomon::test
