#include "trainer/engine/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>

#include "base/errors.h"
#include "trainer/engine/architecture.h"
#include "trainer/engine/json_fields.h"
#include "trainer/engine/parameters.h"
#include "trainer/engine/settings_json.h"

namespace gnomon {
namespace {

namespace json = boost::json;

[[noreturn]] void refuse(const std::string& key, const std::string& value,
                         const std::string& accepted) {
  throw ConfigError("model", 0, key, value, accepted);
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

constexpr std::pair<RopeScaling::Kind, const char*> kRopeScalings[] = {
    {RopeScaling::Kind::kNone, "default"},
    {RopeScaling::Kind::kLinear, "linear"},
    {RopeScaling::Kind::kLlama3, "llama3"}};

// One of the objects that say how heads are rotated: `name` is rope_scaling or rope_parameters.
class RopeObject {
 public:
  RopeObject(const JsonFields& config, const std::string& name)
      : config_(config), name_(name), value_(config.at(name)) {
    if (!value_.is_object()) config.refuse(name, "an object or null");
  }

  RopeScaling scaling() const {
    const std::string kind_key = find("rope_type") != nullptr ? "rope_type" : "type";
    RopeScaling scaling;
    if (const json::value* kind = find(kind_key)) scaling.kind = kind_from(kind_key, *kind);
    refuse_other_keys(scaling.kind);
    if (scaling.kind == RopeScaling::Kind::kNone) return scaling;
    scaling.factor = number("factor", 1, 1e6);
    if (scaling.kind == RopeScaling::Kind::kLinear) return scaling;
    scaling.low_frequency = number("low_freq_factor", 1e-6, 1e6);
    scaling.high_frequency = number("high_freq_factor", 1e-6, 1e6);
    if (!(scaling.high_frequency > scaling.low_frequency)) {
      refuse("high_freq_factor",
             fmt::format("more than low_freq_factor, which is {}", scaling.low_frequency));
    }
    scaling.original_context = original_context();
    return scaling;
  }

  // The base, where it is said here; `top` is the one beside this object, if there is one.
  double theta(double otherwise, bool is_at_top) const {
    const double inner = JsonFields(value_, config_.file()).number_or("rope_theta", otherwise);
    if (is_at_top && inner != otherwise) {
      refuse("rope_theta", fmt::format("rope_theta, which is {}", otherwise));
    }
    return inner;
  }

 private:
  const json::value* find(const std::string& key) const {
    const json::value* found = value_.get_object().if_contains(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& accepted) const {
    const json::value* found = find(key);
    refuse_in_file(config_, name_ + "." + key, found == nullptr ? json::value("absent") : *found,
                   accepted);
  }
  RopeScaling::Kind kind_from(const std::string& key, const json::value& value) const {
    for (const auto& [kind, name] : kRopeScalings) {
      if (value == name) return kind;
    }
    refuse(key, "\"default\", \"linear\", \"llama3\"");
  }
  double number(const std::string& key, double low, double high) const {
    const json::value* found = find(key);
    const bool is_number = found != nullptr && found->is_number();
    const double value = is_number ? found->to_number<double>() : low;
    if (!is_number || !(value >= low && value <= high)) {
      refuse(key, fmt::format("a number of {} to {}", low, high));
    }
    return value;
  }
  int64_t original_context() const {
    const std::string key = "original_max_position_embeddings";
    if (find(key) == nullptr) return config_.integer32("max_position_embeddings");
    const int64_t value = JsonFields(value_, config_.file()).integer(key);
    if (value < 1 || value > 1 << 20) refuse(key, "1 to 1048576");
    return value;
  }
  void refuse_other_keys(RopeScaling::Kind kind) const {
    std::vector<std::string> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    if (kind != RopeScaling::Kind::kNone) known.push_back("factor");
    if (kind == RopeScaling::Kind::kLlama3) {
      known.insert(known.end(),
                   {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    }
    for (const json::key_value_pair& member : value_.get_object()) {
      const std::string key(member.key());
      if (find(key) != nullptr && std::ranges::find(known, key) == known.end()) {
        refuse(key, fmt::format("{} alone", fmt::join(known, ", ")));
      }
    }
    require_number(JsonFields(value_, config_.file()), "partial_rotary_factor", 1);
  }

  const JsonFields& config_;
  std::string name_;
  const json::value& value_;
};

// Before transformers 5 the base stood at the top and rope_scaling beside it, since then both are
// in rope_parameters.
Rotary rotary_from(const JsonFields& fields) {
  constexpr double kDefault = 10000.0;
  const bool is_at_top = fields.find("rope_theta") != nullptr;
  Rotary rotary{fields.number_or("rope_theta", kDefault), {}};
  bool said = false;
  for (const std::string name : {"rope_scaling", "rope_parameters"}) {
    const json::value* value = fields.find(name);
    if (value == nullptr || value->is_null()) continue;
    const RopeObject rope(fields, name);
    const RopeScaling scaling = rope.scaling();
    if (said && scaling != rotary.scaling) {
      refuse_in_file(fields, name, *value, "what rope_scaling says, or only one of the two");
    }
    said = true;
    rotary = {rope.theta(rotary.theta, is_at_top), scaling};
  }
  return rotary;
}

// For transformers since 5, and before (with `theta` at the top).
json::object rope_to_hf(const RopeScaling& scaling) {
  json::object object{{"rope_type", rope_scaling_name(scaling.kind)}};
  if (scaling.kind != RopeScaling::Kind::kNone) object["factor"] = scaling.factor;
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    object["low_freq_factor"] = scaling.low_frequency;
    object["high_freq_factor"] = scaling.high_frequency;
    object["original_max_position_embeddings"] = scaling.original_context;
  }
  return object;
}

void refuse_what_is_not_computed(const JsonFields& fields, const ModelFamily& family) {
  require_value(fields, "hidden_act", "silu");
  require_value(fields, "mlp_bias", false);
  require_value(fields, "quantization_config", nullptr);
  require_number(fields, "attention_dropout", 0);
  require_number(fields, "partial_rotary_factor", 1);
  for (const char* key : family.off) require_value(fields, key, false);
  refuse_sliding_windows(fields);
}

const ModelFamily& family_in(const JsonFields& fields) {
  const std::string type = fields.text("model_type");
  std::vector<const char*> types;
  for (const ModelFamily& family : model_families()) {
    if (type == family.type) return family;
    types.push_back(family.type);
  }
  throw ConfigError(fields.file(), 0, "model_type", type,
                    fmt::format("{}", fmt::join(types, ", ")));
}

}  // namespace

std::string rope_scaling_name(RopeScaling::Kind kind) {
  for (const auto& [known, name] : kRopeScalings) {
    if (known == kind) return name;
  }
  GNOMON_ASSERT(!"a kind without a name");
  return "";
}

int64_t ModelConfig::parameters() const {
  int64_t count = 0;
  ParameterLayout layout(*this);
  for (const Parameter& parameter : layout.all()) count += parameter.size;
  return count;
}

std::vector<std::string> ModelConfig::sites() const {
  std::vector<std::string> names;
  for (Site& site : all_sites(*this)) names.push_back(std::move(site.name));
  return names;
}

void ModelConfig::check() const {
  check_ranges("model", *this);
  check_range("model", "kv_heads", kv_heads, {1, static_cast<double>(heads)});
  check_range("model", "vocabulary", vocabulary, {2, 1 << 20});
  if (head_width == 0 && width % heads != 0) {
    refuse("heads", std::to_string(heads), fmt::format("a divisor of width ({})", width));
  }
  if (head_width % 2 != 0) {
    refuse("head_dim", std::to_string(head_width), "an even number: elements turn in pairs");
  }
  if (head_dim() % 2 != 0) {
    refuse("width", std::to_string(width),
           fmt::format("an even width per head (width / heads is {})", head_dim()));
  }
  if (heads % kv_heads != 0) {
    refuse("kv_heads", std::to_string(kv_heads), fmt::format("a divisor of heads ({})", heads));
  }
  family_of(*this);
}

std::string ModelConfig::to_hf_json(const std::string& dtype) const {
  const ModelFamily& family = family_of(*this);
  json::object object;
  object["architectures"] = json::array{family.class_name};
  object["model_type"] = family.type;
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
  json::object rope = rope_to_hf(rope_scaling);
  if (rope_scaling.kind != RopeScaling::Kind::kNone) object["rope_scaling"] = rope;
  rope["rope_theta"] = rope_theta;
  object["rope_parameters"] = std::move(rope);
  object["rope_theta"] = rope_theta;
  if (head_width > 0 || family.head_dim > 0) object["head_dim"] = head_dim();
  object["tie_word_embeddings"] = tie_embeddings;
  object["dtype"] = dtype;
  object["torch_dtype"] = dtype;
  // Left out, they would be 1 and 2, which are ordinary tokens of a byte vocabulary.
  object["bos_token_id"] = nullptr;
  object["eos_token_id"] = nullptr;
  object["use_cache"] = true;
  object["vocab_size"] = vocabulary;
  for (const char* key : family.off) object[key] = false;
  return json::serialize(object) + "\n";
}

ModelConfig ModelConfig::from_hf_json(const std::string& text, const std::string& file) {
  json::value root = parse_json(text, file);
  JsonFields fields(root, file);
  ModelConfig config;
  const ModelFamily& family = family_in(fields);
  for (bool ModelConfig::*feature : family.features) config.*feature = true;
  refuse_what_is_not_computed(fields, family);
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
  const Rotary rotary = rotary_from(fields);
  config.rope_theta = rotary.theta;
  config.rope_scaling = rotary.scaling;
  config.head_width = family.head_dim;
  const json::value* head_dim = fields.find("head_dim");
  if (head_dim != nullptr && !head_dim->is_null()) {
    config.head_width = fields.integer32("head_dim");
    if (config.head_width == 0) refuse_in_file(fields, "head_dim", *head_dim, "2 to 4096");
  }
  config.init_std = fields.number_or("initializer_range", 0.02);
  config.tie_embeddings = fields.boolean_or("tie_word_embeddings", false);
  try {
    config.check();
  } catch (const ConfigError& error) {
    throw ConfigError(file, 0, hf_key(error.key()), error.value(), error.accepted());
  }
  // One shape, one configuration.
  if (int64_t{config.head_width} * config.heads == config.width) config.head_width = 0;
  return config;
}

}  // namespace gnomon
