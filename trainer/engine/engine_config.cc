#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/fault_check.h"
#include "trainer/engine/json_fields.h"

namespace gnomon {
namespace {

namespace json = boost::json;

void check_range(const std::string& file, const std::string& key, int64_t value, int64_t low,
                 int64_t high) {
  if (value < low || value > high) {
    throw ConfigError(file, 0, key, std::to_string(value), fmt::format("{} to {}", low, high));
  }
}

void check_real(const std::string& key, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    throw ConfigError("optimizer", 0, key, fmt::format("{}", value),
                      fmt::format("{} to {}", low, high));
  }
}

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

json::object json_of(const ModelConfig& model) {
  return {{"layers", model.layers},
          {"width", model.width},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_width", model.head_width},
          {"ffn", model.ffn},
          {"vocabulary", model.vocabulary},
          {"context", model.context},
          {"qkv_bias", model.qkv_bias},
          {"tie_embeddings", model.tie_embeddings},
          {"rope_theta", exact_text(model.rope_theta)},
          {"rope_scaling", json_of(model.rope_scaling)},
          {"norm_eps", exact_text(model.norm_eps)},
          {"init_std", exact_text(model.init_std)}};
}

ModelConfig model_from(const JsonFields& fields) {
  ModelConfig model;
  model.layers = fields.integer32("layers");
  model.width = fields.integer32("width");
  model.heads = fields.integer32("heads");
  model.kv_heads = fields.integer32("kv_heads");
  model.head_width = fields.integer32("head_width");
  model.ffn = fields.integer32("ffn");
  model.vocabulary = fields.integer32("vocabulary");
  model.context = fields.integer32("context");
  model.qkv_bias = fields.boolean("qkv_bias");
  model.tie_embeddings = fields.boolean("tie_embeddings");
  model.rope_theta = fields.exact("rope_theta");
  model.rope_scaling = rope_scaling_from(fields);
  model.norm_eps = fields.exact("norm_eps");
  model.init_std = fields.exact("init_std");
  return model;
}

json::object json_of(const OptimizerConfig& optimizer) {
  return {{"learning_rate", exact_text(optimizer.learning_rate)},
          {"min_ratio", exact_text(optimizer.min_ratio)},
          {"warmup_steps", optimizer.warmup_steps},
          {"total_steps", optimizer.total_steps},
          {"beta1", exact_text(optimizer.beta1)},
          {"beta2", exact_text(optimizer.beta2)},
          {"eps", exact_text(optimizer.eps)},
          {"weight_decay", exact_text(optimizer.weight_decay)},
          {"clip", exact_text(optimizer.clip)}};
}

MomentFormat moment_from(const JsonFields& fields, const std::string& key) {
  try {
    return moment_format_from_name(fields.text(key));
  } catch (const FormatError&) {
    throw;
  } catch (const Error&) {
    fields.refuse(key, "\"fp32\", \"bf16\" or \"fp8\"");
  }
}

OptimizerConfig optimizer_from(const JsonFields& fields) {
  OptimizerConfig optimizer;
  optimizer.learning_rate = fields.exact("learning_rate");
  optimizer.min_ratio = fields.exact("min_ratio");
  optimizer.warmup_steps = fields.integer("warmup_steps");
  optimizer.total_steps = fields.integer("total_steps");
  optimizer.beta1 = fields.exact("beta1");
  optimizer.beta2 = fields.exact("beta2");
  optimizer.eps = fields.exact("eps");
  optimizer.weight_decay = fields.exact("weight_decay");
  optimizer.clip = fields.exact("clip");
  return optimizer;
}

json::object json_of(const Fault& fault) {
  return {{"kind", fault_kind_name(fault.kind)},
          {"site", fault.site},
          {"tensor", fault.tensor},
          {"start_step", fault.start_step},
          {"end_step", fault.end_step},
          {"log2_factor", fault.log2_factor},
          {"element", fault.element},
          {"bit", fault.bit},
          {"format", fault.format},
          {"gemm", fault.gemm},
          {"factor", exact_text(fault.factor)},
          {"steps", fault.steps},
          {"terms", fault.terms},
          {"value", fault.value},
          {"fraction_bits", fault.fraction_bits}};
}

Fault fault_from(const JsonFields& fields) {
  Fault fault;
  fault.kind = fault_kind_from_name(fields.text("kind"));
  fault.site = fields.text("site");
  fault.tensor = fields.text("tensor");
  fault.start_step = fields.integer("start_step");
  fault.end_step = fields.integer("end_step");
  fault.log2_factor = fields.integer32("log2_factor");
  fault.element = fields.integer("element");
  fault.bit = fields.integer32("bit");
  fault.format = fields.text("format");
  fault.gemm = fields.text("gemm");
  fault.factor = fields.exact("factor");
  fault.steps = fields.integer("steps");
  fault.terms = fields.integer("terms");
  fault.value = fields.integer32("value");
  fault.fraction_bits = fields.integer32("fraction_bits");
  return fault;
}

}  // namespace

std::string compute_name(Compute compute) { return compute == Compute::kFp32 ? "fp32" : "bf16"; }

Compute compute_from_name(const std::string& name, const std::string& file) {
  for (Compute compute : {Compute::kBf16, Compute::kFp32}) {
    if (compute_name(compute) == name) return compute;
  }
  throw ConfigError(file, 0, "compute", name, "bf16, fp32");
}

std::string sharding_name(Sharding sharding) {
  return sharding == Sharding::kWeights ? "weights" : "optimizer";
}

Sharding sharding_from_name(const std::string& name, const std::string& file) {
  for (Sharding sharding : {Sharding::kOptimizer, Sharding::kWeights}) {
    if (sharding_name(sharding) == name) return sharding;
  }
  throw ConfigError(file, 0, "shard", name, "optimizer, weights");
}

void check_engine_config(const EngineConfig& config) {
  config.model.check();
  check_range("batch", "sequences", config.batch.sequences, 1, 1 << 16);
  check_range("batch", "tokens", config.batch.tokens, 1, config.model.context);
  check_range("batch", "accumulation", config.batch.accumulation, 1, 1 << 16);
  check_range("engine", "threads", config.threads, 1, 1024);
  const int64_t head_rows = config.memory.head_rows;
  if (head_rows < 0 || head_rows % MemoryChoice::kHeadRowsMultiple != 0) {
    throw ConfigError("memory", 0, "head_rows", std::to_string(head_rows),
                      fmt::format("0 or a multiple of {}", MemoryChoice::kHeadRowsMultiple));
  }
  check_range("engine", "heldout_sequences", config.heldout_sequences, 1, 1 << 20);
  const OptimizerConfig& optimizer = config.optimizer;
  check_real("learning_rate", optimizer.learning_rate, 0, 1e3);
  check_real("min_ratio", optimizer.min_ratio, 0, 1);
  check_range("optimizer", "warmup_steps", optimizer.warmup_steps, 0, int64_t{1} << 40);
  check_range("optimizer", "total_steps", optimizer.total_steps, 1, int64_t{1} << 40);
  check_real("beta1", optimizer.beta1, 0, 0.999999);
  check_real("beta2", optimizer.beta2, 0, 0.999999999);
  check_real("eps", optimizer.eps, 1e-30, 1);
  check_real("weight_decay", optimizer.weight_decay, 0, 100);
  check_real("clip", optimizer.clip, 0, 1e30);
  for (const Fault& fault : config.faults) check_fault(fault, config);
}

std::string EngineConfig::to_json() const {
  json::array fault_list;
  for (const Fault& fault : faults) fault_list.push_back(json_of(fault));
  json::object object{{"model", json_of(model)},
                      {"from", from},
                      {"compute", compute_name(compute)},
                      {"batch", json::object{{"sequences", batch.sequences},
                                             {"tokens", batch.tokens},
                                             {"accumulation", batch.accumulation}}},
                      {"optimizer", json_of(optimizer)},
                      {"data", data},
                      {"seed", seed},
                      {"threads", threads},
                      {"device", device_name(device)},
                      {"memory", json::object{{"recompute", recompute_name(memory.recompute)},
                                              {"head_rows", memory.head_rows},
                                              {"moments", moment_format_name(memory.moments)}}},
                      {"heldout_sequences", heldout_sequences},
                      {"shard", sharding_name(shard)},
                      {"faults", std::move(fault_list)}};
  return json::serialize(object);
}

EngineConfig EngineConfig::from_json(const std::string& text, const std::string& file) {
  json::value root = parse_json(text, file);
  JsonFields fields(root, file);
  EngineConfig config;
  config.model = model_from(JsonFields(fields.at("model"), file));
  config.from = fields.text("from");
  config.compute = compute_from_name(fields.text("compute"), file);
  config.device = device_from_name(fields.text("device"), file);
  const JsonFields memory(fields.at("memory"), file);
  config.memory.recompute = recompute_from_name(memory.text("recompute"), file);
  config.memory.head_rows = memory.integer("head_rows");
  // Recorded runs of before have none.
  if (memory.find("moments") != nullptr) config.memory.moments = moment_from(memory, "moments");
  JsonFields batch(fields.at("batch"), file);
  config.batch.sequences = batch.integer32("sequences");
  config.batch.tokens = batch.integer32("tokens");
  config.batch.accumulation = batch.integer32("accumulation");
  config.optimizer = optimizer_from(JsonFields(fields.at("optimizer"), file));
  config.data = fields.text("data");
  config.seed = fields.integer("seed");
  config.threads = fields.integer32("threads");
  config.heldout_sequences = fields.integer32("heldout_sequences");
  config.shard = sharding_from_name(fields.text("shard"), file);
  if (!fields.at("faults").is_array()) fields.refuse("faults", "an array");
  for (const json::value& fault : fields.at("faults").get_array()) {
    config.faults.push_back(fault_from(JsonFields(fault, file)));
  }
  check_engine_config(config);
  return config;
}

}  // namespace gnomon
