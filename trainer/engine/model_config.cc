#include "trainer/engine/model_config.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <initializer_list>
#include <map>

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

// What config.json calls the keys of ModelConfig.
std::string hf_key(const std::string& key) {
  static const std::map<std::string, std::string> kNames = {
      {"layers", "num_hidden_layers"},        {"width", "hidden_size"},
      {"heads", "num_attention_heads"},       {"kv_heads", "num_key_value_heads"},
      {"ffn", "intermediate_size"},           {"vocabulary", "vocab_size"},
      {"context", "max_position_embeddings"}, {"norm_eps", "rms_norm_eps"},
      {"init_std", "initializer_range"}};
  auto found = kNames.find(key);
  return found == kNames.end() ? key : found->second;
}

[[noreturn]] void refuse_in_file(const JsonFields& fields, const std::string& key,
                                 const json::value& found, const std::string& accepted) {
  throw ConfigError(fields.file(), 0, key, json::serialize(found).substr(0, 200), accepted);
}

// What the model does not compute may be in the file only with the value that switches it off.
void require_value(const JsonFields& fields, const std::string& key, const json::value& wanted) {
  const json::value* found = fields.find(key);
  if (found != nullptr && !found->is_null() && *found != wanted)
    refuse_in_file(fields, key, *found, json::serialize(wanted));
}

void require_number(const JsonFields& fields, const std::string& key, double wanted) {
  if (fields.number_or(key, wanted) != wanted)
    refuse_in_file(fields, key, fields.at(key), fmt::format("{}", wanted));
}

void refuse_sliding_windows(const JsonFields& fields) {
  require_value(fields, "use_sliding_window", false);
  const json::value* types = fields.find("layer_types");
  if (types == nullptr || types->is_null()) return;
  if (!types->is_array()) fields.refuse("layer_types", "an array");
  for (const json::value& type : types->get_array()) {
    if (type != "full_attention")
      refuse_in_file(fields, "layer_types", type, "\"full_attention\" for every layer");
  }
}

// Before transformers 5 the base stood at the top and rope_scaling beside it, since then both are
// in rope_parameters. Only plain rotation is computed.
double rope_theta_from(const JsonFields& fields) {
  constexpr double kDefault = 10000.0;
  double theta = fields.number_or("rope_theta", kDefault);
  for (const std::string name : {"rope_scaling", "rope_parameters"}) {
    const json::value* value = fields.find(name);
    if (value == nullptr || value->is_null()) continue;
    if (!value->is_object()) fields.refuse(name, "an object or null");
    JsonFields rope(*value, fields.file());
    for (const json::key_value_pair& member : value->get_object()) {
      const std::string key(member.key());
      const std::string path = name + "." + key;
      if (key == "rope_type" || key == "type") {
        if (member.value() != "default")
          refuse_in_file(fields, path, member.value(), "\"default\": rotation without scaling");
      } else if (key == "rope_theta") {
        const double inner = rope.number_or(key, theta);
        if (fields.find("rope_theta") != nullptr && inner != theta)
          refuse_in_file(fields, path, member.value(),
                         fmt::format("rope_theta, which is {}", theta));
        theta = inner;
      } else if (key == "partial_rotary_factor") {
        require_number(rope, key, 1);
      } else if (!member.value().is_null()) {
        refuse_in_file(fields, path, member.value(), "rope_theta and rope_type alone");
      }
    }
  }
  return theta;
}

void refuse_what_is_not_computed(const JsonFields& fields, const std::string& type) {
  require_value(fields, "hidden_act", "silu");
  require_value(fields, "mlp_bias", false);
  require_value(fields, "quantization_config", nullptr);
  require_number(fields, "attention_dropout", 0);
  require_number(fields, "partial_rotary_factor", 1);
  // transformers' Qwen2 has no such key: its biases are always those of q, k and v.
  if (type == "llama") require_value(fields, "attention_bias", false);
  refuse_sliding_windows(fields);
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
  // Twice: for transformers since 5, and before.
  object["rope_parameters"] = json::object{{"rope_theta", rope_theta}, {"rope_type", "default"}};
  object["rope_theta"] = rope_theta;
  object["tie_word_embeddings"] = tie_embeddings;
  object["dtype"] = dtype;
  object["torch_dtype"] = dtype;
  // Left out, they would be 1 and 2, which are ordinary tokens of a byte vocabulary.
  object["bos_token_id"] = nullptr;
  object["eos_token_id"] = nullptr;
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
  refuse_what_is_not_computed(fields, type);
  config.width = fields.integer32("hidden_size");
  config.ffn = fields.integer32("intermediate_size");
  config.heads = fields.integer32("num_attention_heads");
  config.layers = fields.integer32("num_hidden_layers");
  const json::value* kv_heads = fields.find("num_key_value_heads");
  config.kv_heads = kv_heads == nullptr || kv_heads->is_null()
                        ? config.heads
                        : fields.integer32("num_key_value_heads");
  config.vocabulary = fields.integer32("vocab_size");
  config.context = fields.integer32("max_position_embeddings");
  config.norm_eps = fields.number_or("rms_norm_eps", 1e-6);
  config.rope_theta = rope_theta_from(fields);
  config.init_std = fields.number_or("initializer_range", 0.02);
  config.tie_embeddings = fields.boolean_or("tie_word_embeddings", false);
  try {
    config.check();
  } catch (const ConfigError& error) {
    throw ConfigError(file, 0, hf_key(error.key()), error.value(), error.accepted());
  }
  const json::value* head_dim = fields.find("head_dim");
  if (head_dim != nullptr && !head_dim->is_null() && *head_dim != config.head_dim())
    refuse_in_file(fields, "head_dim", *head_dim,
                   fmt::format("hidden_size / num_attention_heads = {}", config.head_dim()));
  return config;
}

}  // namespace gnomon
