#include "trainer/engine/model_config.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <initializer_list>

#include "base/errors.h"
#include "trainer/engine/json_fields.h"
#include "trainer/engine/parameters.h"

namespace gnomon {
namespace {

namespace json = boost::json;

[[noreturn]] void refuse(const std::string& key, const std::string& value,
                         const std::string& accepted) {
  throw ConfigError("model", 0, key, value, accepted);
}

void check_range(const std::string& key, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    refuse(key, std::to_string(value), fmt::format("{} to {}", low, high));
  }
}

// In place of Hugging Face's defaults we only accept what the model computes.
void require_value(const JsonFields& fields, const std::string& key, const json::value& wanted) {
  const json::value* found = fields.find(key);
  if (found != nullptr && !found->is_null() && *found != wanted) {
    throw ConfigError(fields.file(), 0, key, json::serialize(*found), json::serialize(wanted));
  }
}

}  // namespace

int64_t ModelConfig::parameters() const {
  int64_t count = 0;
  ParameterLayout layout(*this);
  for (const Parameter& parameter : layout.all()) count += parameter.size;
  return count;
}

std::vector<std::string> ModelConfig::sites() const {
  std::vector<std::string> names;
  for (int layer = 0; layer < layers; ++layer) {
    std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      names.push_back(prefix + name);
    }
  }
  names.push_back("lm_head");
  return names;
}

void ModelConfig::check() const {
  check_range("layers", layers, 1, 512);
  check_range("width", width, 2, 65536);
  check_range("heads", heads, 1, 1024);
  check_range("kv_heads", kv_heads, 1, heads);
  check_range("ffn", ffn, 1, 1 << 20);
  check_range("vocabulary", vocabulary, 2, 1 << 20);
  check_range("context", context, 1, 1 << 20);
  if (width % heads != 0) {
    refuse("heads", std::to_string(heads), fmt::format("a divisor of width ({})", width));
  }
  if (head_dim() % 2 != 0) {
    refuse("width", std::to_string(width),
           fmt::format("an even width per head (width / heads is {})", head_dim()));
  }
  if (heads % kv_heads != 0) {
    refuse("kv_heads", std::to_string(kv_heads), fmt::format("a divisor of heads ({})", heads));
  }
  if (!(rope_theta >= 1 && rope_theta <= 1e9)) {
    refuse("rope_theta", fmt::format("{}", rope_theta), "1 to 1e9");
  }
  if (!(norm_eps > 0 && norm_eps <= 1e-2)) {
    refuse("norm_eps", fmt::format("{}", norm_eps), "above 0, at most 0.01");
  }
  if (!(init_std > 0 && init_std <= 1)) {
    refuse("init_std", fmt::format("{}", init_std), "above 0, at most 1");
  }
}

std::string ModelConfig::to_hf_json(const std::string& dtype) const {
  json::object object;
  object["architectures"] = json::array{qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"};
  object["model_type"] = qkv_bias ? "qwen2" : "llama";
  object["hidden_act"] = "silu";
  object["hidden_size"] = width;
  object["initializer_range"] = init_std;
  object["intermediate_size"] = ffn;
  object["max_position_embeddings"] = context;
  object["num_attention_heads"] = heads;
  object["num_hidden_layers"] = layers;
  object["num_key_value_heads"] = kv_heads;
  object["rms_norm_eps"] = norm_eps;
  object["rope_scaling"] = nullptr;
  object["rope_theta"] = rope_theta;
  object["tie_word_embeddings"] = tie_embeddings;
  object["torch_dtype"] = dtype;
  object["use_cache"] = true;
  object["vocab_size"] = vocabulary;
  if (!qkv_bias) {
    object["attention_bias"] = false;
    object["mlp_bias"] = false;
  }
  return json::serialize(object) + "\n";
}

ModelConfig ModelConfig::from_hf_json(const std::string& text, const std::string& file) {
  json::value root = parse_json(text, file);
  JsonFields fields(root, file);
  ModelConfig config;
  std::string type = fields.text("model_type");
  if (type != "llama" && type != "qwen2") {
    throw ConfigError(file, 0, "model_type", type, "llama or qwen2");
  }
  config.qkv_bias = type == "qwen2";
  require_value(fields, "hidden_act", "silu");
  require_value(fields, "rope_scaling", nullptr);
  require_value(fields, "attention_bias", false);
  require_value(fields, "mlp_bias", false);
  require_value(fields, "use_sliding_window", false);
  config.width = fields.integer32("hidden_size");
  config.ffn = fields.integer32("intermediate_size");
  config.heads = fields.integer32("num_attention_heads");
  config.layers = fields.integer32("num_hidden_layers");
  config.kv_heads = fields.find("num_key_value_heads") != nullptr
                        ? fields.integer32("num_key_value_heads")
                        : config.heads;
  config.vocabulary = fields.integer32("vocab_size");
  config.context = fields.integer32("max_position_embeddings");
  config.norm_eps = fields.number_or("rms_norm_eps", 1e-6);
  config.rope_theta = fields.number_or("rope_theta", 10000.0);
  config.init_std = fields.number_or("initializer_range", 0.02);
  config.tie_embeddings = fields.boolean_or("tie_word_embeddings", false);
  if (fields.find("head_dim") != nullptr && fields.integer32("head_dim") != config.head_dim()) {
    throw ConfigError(file, 0, "head_dim", std::to_string(fields.integer32("head_dim")),
                      fmt::format("hidden_size / num_attention_heads = {}", config.head_dim()));
  }
  config.check();
  return config;
}

}  // namespace gnomon
