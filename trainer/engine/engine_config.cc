#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/fault_check.h"
#include "trainer/engine/json_fields.h"
#include "trainer/engine/settings_json.h"

namespace gnomon {
namespace {

namespace json = boost::json;

json::value json_of(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return nullptr;
  if (scaling.kind == RopeScaling::Kind::kLinear) {
    return {{"kind", "linear"}, {"factor", exact_text(scaling.factor)}};
  }
  return {{"kind", "llama3"},
          {"factor", exact_text(scaling.factor)},
          {"low_frequency", exact_text(scaling.low_frequency)},
          {"high_frequency", exact_text(scaling.high_frequency)},
          {"original_context", scaling.original_context}};
}

RopeScaling rope_scaling_from(const JsonFields& model) {
  const json::value& found = model.at("rope_scaling");
  if (found.is_null()) return {};
  const JsonFields fields(found, model.file());
  RopeScaling scaling;
  const std::string kind = fields.text("kind");
  if (kind != "linear" && kind != "llama3") fields.refuse("kind", "\"linear\" or \"llama3\"");
  scaling.factor = fields.exact("factor");
  scaling.kind = RopeScaling::Kind::kLinear;
  if (kind == "linear") return scaling;
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.low_frequency = fields.exact("low_frequency");
  scaling.high_frequency = fields.exact("high_frequency");
  scaling.original_context = fields.integer("original_context");
  return scaling;
}

// Checkpoints call the width of a head by another name than configurations do.
constexpr const char* kHeadDimKey = "head_dim";
constexpr const char* kHeadWidthKey = "head_width";

json::object json_of(const ModelConfig& model) {
  json::object object = settings_to_json(model);
  object.erase(kHeadDimKey);
  object.emplace(kHeadWidthKey, model.head_width);
  object.emplace("rope_scaling", json_of(model.rope_scaling));
  return object;
}

ModelConfig model_from(const json::value& value, const std::string& file) {
  const JsonFields written(value, file);
  json::object object = value.get_object();
  object[kHeadDimKey] = written.integer32(kHeadWidthKey);
  const json::value renamed = std::move(object);
  ModelConfig model = settings_from_json<ModelConfig>(JsonFields(renamed, file));
  model.rope_scaling = rope_scaling_from(written);
  return model;
}

}  // namespace

std::string compute_name(Compute compute) {
  return std::string(kComputes[static_cast<size_t>(compute)]);
}

Compute compute_from_name(const std::string& name, const std::string& file) {
  const auto found = std::ranges::find(kComputes, name);
  if (found == kComputes.end()) throw ConfigError(file, 0, "compute", name, "bf16, fp32");
  return static_cast<Compute>(found - kComputes.begin());
}

std::string sharding_name(Sharding sharding) {
  return std::string(kShardings[static_cast<size_t>(sharding)]);
}

void check_engine_config(const EngineConfig& config) {
  config.model.check();
  check_ranges("batch", config.batch);
  check_range("batch", "tokens", config.batch.tokens,
              {1, static_cast<double>(config.model.context)});
  check_range("engine", "threads", config.threads, EngineConfig::kThreads);
  const int64_t head_rows = config.memory.head_rows;
  if (head_rows < 0 || head_rows % MemoryChoice::kHeadRowsMultiple != 0) {
    throw ConfigError("memory", 0, "head_rows", std::to_string(head_rows),
                      fmt::format("0 or a multiple of {}", MemoryChoice::kHeadRowsMultiple));
  }
  check_range("engine", "heldout_sequences", config.heldout_sequences,
              EngineConfig::kHeldoutSequences);
  check_ranges("optimizer", config.optimizer);
  for (const Fault& fault : config.faults) check_fault(fault, config);
}

std::string EngineConfig::to_json() const {
  json::array fault_list;
  for (const Fault& fault : faults) fault_list.push_back(settings_to_json(fault));
  json::object object{{"model", json_of(model)},
                      {"from", from},
                      {"compute", compute_name(compute)},
                      {"batch", settings_to_json(batch)},
                      {"optimizer", settings_to_json(optimizer)},
                      {"data", data},
                      {"seed", seed},
                      {"threads", threads},
                      {"device", device_name(device)},
                      {"memory", settings_to_json(memory)},
                      {"heldout_sequences", heldout_sequences},
                      {"shard", sharding_name(shard)},
                      {"faults", std::move(fault_list)}};
  return json::serialize(object);
}

EngineConfig EngineConfig::from_json(const std::string& text, const std::string& file) {
  json::value root = parse_json(text, file);
  JsonFields fields(root, file);
  EngineConfig config;
  config.model = model_from(fields.at("model"), file);
  config.from = fields.text("from");
  config.compute = compute_from_name(fields.text("compute"), file);
  config.device = device_from_name(fields.text("device"), file);
  const auto part = [&](const char* key) { return JsonFields(fields.at(key), file); };
  config.memory = settings_from_json<MemoryChoice>(part("memory"));
  config.batch = settings_from_json<BatchConfig>(part("batch"));
  config.optimizer = settings_from_json<OptimizerConfig>(part("optimizer"));
  config.data = fields.text("data");
  config.seed = fields.integer("seed");
  config.threads = fields.integer32("threads");
  config.heldout_sequences = fields.integer32("heldout_sequences");
  const auto shard = std::ranges::find(kShardings, fields.text("shard"));
  if (shard == kShardings.end()) fields.refuse("shard", "\"optimizer\" or \"weights\"");
  config.shard = static_cast<Sharding>(shard - kShardings.begin());
  if (!fields.at("faults").is_array()) fields.refuse("faults", "an array");
  for (const json::value& fault : fields.at("faults").get_array()) {
    config.faults.push_back(settings_from_json<Fault>(JsonFields(fault, file)));
  }
  check_engine_config(config);
  return config;
}

}  // namespace gnomon
