#include "trainer/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <thread>

#include "base/files.h"
#include "base/named_file.h"
#include "protocol/toml_reader.h"
#include "storage/token_shards.h"
#include "trainer/config_controller.h"
#include "trainer/config_faults.h"
#include "trainer/device_health.h"
#include "trainer/engine/hf_import.h"
#include "trainer/engine/plan_shapes.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStepsMax = int64_t{1} << 40;
constexpr int kThreadsMax = 1024;
constexpr double kLongest = 1e9;

// Reads one file section by section.
class ConfigReader {
 public:
  ConfigReader(const std::string& file, const TrainerOverrides& overrides)
      : overrides_(overrides), root_(TomlTable::parse(read_named_file_or_pipe(file), file)) {
    config_.file = file;
  }

  TrainerConfig read() {
    read_run();
    read_optimizer();
    read_batch();
    read_memory();
    read_ranks();
    read_data();
    read_model();
    read_precision();
    read_checkpoint();
    read_controller();
    read_statistics();
    read_verification();
    check_together();
    for (TomlTable& table : root_.tables("fault")) read_fault(table);
    root_.refuse_unknown_keys();
    return std::move(config_);
  }

 private:
  fs::path beside_file(const std::string& path) const {
    return (fs::absolute(config_.file).parent_path() / path).lexically_normal();
  }

  TomlTable section(const std::string& name, std::initializer_list<const char*> keys) {
    TomlTable table = root_.table(name);
    config_.lines[name] = table.line();
    for (const char* key : keys) config_.lines[name + "." + key] = table.line_of(key);
    return table;
  }

  int whole(TomlTable& table, const char* key, int fallback, int min, int max) {
    return static_cast<int>(table.integer(key, fallback, min, max));
  }

  void read_run();
  void read_model();
  void read_shape(TomlTable& table);
  void take_shape_from(TomlTable& table);
  void read_data();
  void read_batch();
  void read_memory();
  void read_run_choice(TomlTable& table, const char* key, const char* site);
  void read_ranks();
  void read_optimizer();
  void read_precision();
  void read_checkpoint();
  void read_controller();
  void read_statistics();
  void read_verification();
  void read_fault(TomlTable& table);
  void check_together();
  std::string identifier(TomlTable& table, const char* key, const std::string& fallback);

  const TrainerOverrides& overrides_;
  TrainerConfig config_;
  TomlTable root_;
  RunPrecision run_wide_;  // what the plan's own rules do not speak of
  int32_t data_vocabulary_ = 0;
};

bool any_fp8(const TrainerConfig& config) {
  const ModelConfig& model = config.engine.model;
  return std::ranges::any_of(model.sites(), [&](const std::string& site) {
    return config.plan.resolve(site, model.layers).any_fp8();
  });
}

// Why a run's directory cannot be at `path`; empty when it can.
std::string why_no_directory(const fs::path& path) {
  fs::path there = path;
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) {
    // Below a file the system says "not a directory", which is the parent's fault.
    if (error && error != std::errc::not_a_directory) break;
    there = there.parent_path();
  }
  if (error) return error.message();
  if (!fs::is_directory(there)) return there.string() + " is no directory";
  if (::access(there.c_str(), W_OK | X_OK) != 0) return there.string() + " cannot be written to";
  return {};
}

// Names end up in URLs, paths and metric labels.
constexpr size_t kIdentifierMax = 100;

std::string what_identifies() {
  return fmt::format("1 to {} letters, digits, '_', '-' and '.', not beginning with '.'",
                     kIdentifierMax);
}

bool identifies(const std::string& value) {
  const bool plain = std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
  return !value.empty() && value.size() <= kIdentifierMax && plain && value[0] != '.';
}

std::string ConfigReader::identifier(TomlTable& table, const char* key,
                                     const std::string& fallback) {
  std::string value = table.text(key, fallback);
  if (!identifies(value)) table.refuse(key, what_identifies());
  return value;
}

void ConfigReader::read_run() {
  TomlTable run =
      section("run", {"name", "job_id", "dir", "seed", "steps", "threads", "device", "watch_gpu"});
  config_.name = identifier(run, "name", "run");
  config_.job_id = identifier(run, "job_id", "1");
  if (overrides_.job_id) {
    if (!identifies(*overrides_.job_id)) {
      throw ConfigError("", 0, "--job-id", toml_quoted(*overrides_.job_id), what_identifies());
    }
    config_.job_id = *overrides_.job_id;
  }
  const std::string dir = run.text("dir", fmt::format("runs/{}-{}", config_.name, config_.job_id));
  const std::string& given = overrides_.dir ? *overrides_.dir : dir;
  if (!given.empty()) {
    config_.dir = overrides_.dir ? fs::absolute(given).lexically_normal() : beside_file(given);
  }
  const std::string wrong = given.empty() ? "it is empty" : why_no_directory(config_.dir);
  if (!wrong.empty()) {
    throw ConfigError(overrides_.dir ? "" : config_.file, overrides_.dir ? 0 : run.line_of("dir"),
                      overrides_.dir ? "--dir" : "run.dir", toml_quoted(given),
                      fmt::format("a directory, or a path where one can be made ({})", wrong));
  }
  config_.engine.seed = run.integer("seed", 1, 0, std::numeric_limits<int64_t>::max());
  config_.steps = run.integer("steps", 1000, 1, kStepsMax);
  if (overrides_.steps) {
    if (*overrides_.steps < 1 || *overrides_.steps > kStepsMax) {
      throw ConfigError("", 0, "--steps", std::to_string(*overrides_.steps),
                        fmt::format("1 to {}", kStepsMax));
    }
  }
  const int cores =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadsMax);
  config_.engine.threads = whole(run, "threads", cores, 1, kThreadsMax);
  if (overrides_.threads) {
    if (*overrides_.threads < 1 || *overrides_.threads > kThreadsMax) {
      throw ConfigError("", 0, "--threads", std::to_string(*overrides_.threads),
                        fmt::format("1 to {}", kThreadsMax));
    }
    config_.engine.threads = *overrides_.threads;
  }
  const std::string device = run.choice("device", "cpu", {"cpu", "cuda"});
  config_.engine.device = device_from_name(overrides_.device.value_or(device), "--device");
  config_.watch_gpu = run.text("watch_gpu", "");
  if (run.has("watch_gpu") && !is_pci_bus_id(config_.watch_gpu)) {
    run.refuse("watch_gpu", "a GPU's PCI bus id, like \"0000:01:00.0\", as nvidia-smi shows it");
  }
  run.refuse_unknown_keys();
}

constexpr std::array kShapeKeys = {
    "layers",  "width",    "heads",          "kv_heads",   "head_dim", "ffn",     "vocabulary",
    "context", "qkv_bias", "tie_embeddings", "rope_theta", "norm_eps", "init_std"};

void ConfigReader::read_model() {
  TomlTable table = section("model", {"from", "compute"});
  for (const char* key : kShapeKeys) {
    config_.lines[std::string("model.") + key] = table.line_of(table.has("from") ? "from" : key);
  }
  table.has("from") ? take_shape_from(table) : read_shape(table);
  config_.engine.compute = compute_from_name(
      table.choice("compute", compute_name(config_.engine.compute), {"bf16", "fp32"}),
      config_.file);
  table.refuse_unknown_keys();
  // Before anybody makes a list of its layers.
  try {
    config_.engine.model.check();
  } catch (const ConfigError& error) {
    throw config_.located(error);
  }
}

void ConfigReader::take_shape_from(TomlTable& table) {
  for (const char* key : kShapeKeys) {
    if (table.has(key)) table.refuse(key, "nothing: the model's shape is that of model.from");
  }
  const fs::path path = beside_file(table.text("from", ""));
  if (!is_file_at(path / "config.json")) {
    table.refuse("from",
                 "a directory with config.json and safetensors, as transformers saves a model");
  }
  config_.engine.from = path.string();
  config_.engine.model = HfCheckpoint(path).config();
}

void ConfigReader::read_shape(TomlTable& table) {
  constexpr int kMax = std::numeric_limits<int>::max();
  ModelConfig& model = config_.engine.model;
  model.layers = whole(table, "layers", model.layers, 1, kMax);
  model.width = whole(table, "width", model.width, 1, kMax);
  model.heads = whole(table, "heads", model.heads, 1, kMax);
  model.kv_heads = whole(table, "kv_heads", std::min(model.kv_heads, model.heads), 1, kMax);
  if (table.has("head_dim")) model.head_width = whole(table, "head_dim", 0, 1, kMax);
  model.ffn = whole(table, "ffn", model.ffn, 1, kMax);
  model.vocabulary =
      table.has("vocabulary") ? whole(table, "vocabulary", 0, 2, kMax) : data_vocabulary_;
  model.context = whole(table, "context", model.context, 1, kMax);
  model.qkv_bias = table.boolean("qkv_bias", model.qkv_bias);
  model.tie_embeddings = table.boolean("tie_embeddings", model.tie_embeddings);
  model.rope_theta = table.number("rope_theta", model.rope_theta, 1, 1e9);
  model.norm_eps = table.number("norm_eps", model.norm_eps, 1e-30, 1e-2);
  model.init_std = table.number("init_std", model.init_std, 1e-30, 1);
}

void ConfigReader::read_data() {
  TomlTable data = section("data", {"dir"});
  const std::string dir = data.text("dir", "");
  data.refuse_unknown_keys();
  const std::string& given = overrides_.data ? *overrides_.data : dir;
  fs::path path;
  if (!given.empty()) {
    path = overrides_.data ? fs::absolute(given).lexically_normal() : beside_file(given);
  }
  if (path.empty() || !is_file_at(path / "dataset.json")) {
    throw ConfigError(config_.file, data.line_of("dir"), overrides_.data ? "--data" : "data.dir",
                      toml_quoted(given),
                      "a directory with a dataset.json, as `gnomon data prepare` makes it");
  }
  config_.engine.data = path.string();
  const Dataset dataset = Dataset::open(path);
  data_vocabulary_ = dataset.info.vocabulary;
  TomlTable eval = section("eval", {"sequences"});
  config_.engine.heldout_sequences = whole(eval, "sequences", 32, 1, 1 << 20);
  const int64_t available = (dataset.heldout.tokens() - 1) / config_.engine.batch.tokens;
  if (eval.has("sequences") && available > 0 && config_.engine.heldout_sequences > available) {
    eval.refuse("sequences",
                fmt::format("1 to {}: {} holds out {} tokens, and a sequence has {}", available,
                            path.string(), dataset.heldout.tokens(), config_.engine.batch.tokens));
  }
  eval.refuse_unknown_keys();
}

void ConfigReader::read_batch() {
  TomlTable table = section("batch", {"sequences", "tokens", "accumulation"});
  BatchConfig& batch = config_.engine.batch;
  batch.sequences = whole(table, "sequences", batch.sequences, 1, 1 << 16);
  batch.tokens = whole(table, "tokens", batch.tokens, 1, 1 << 20);
  batch.accumulation = whole(table, "accumulation", batch.accumulation, 1, 1 << 16);
  table.refuse_unknown_keys();
}

void ConfigReader::read_memory() {
  TomlTable table = section("memory", {"recompute", "head_rows", "moments"});
  MemoryChoice& memory = config_.engine.memory;
  memory.recompute = recompute_from_name(
      table.choice("recompute", "none", {"none", "swiglu", "block"}), config_.file);
  memory.head_rows = table.integer("head_rows", 0, 0, 1 << 30);
  if (memory.head_rows % MemoryChoice::kHeadRowsMultiple != 0) {
    table.refuse("head_rows",
                 fmt::format("0 or a multiple of {}", MemoryChoice::kHeadRowsMultiple));
  }
  memory.moments =
      moment_format_from_name(table.choice("moments", "fp32", {"fp32", "bf16", "fp8"}));
  table.refuse_unknown_keys();
}

// What the first plan says of the whole run unless its file says otherwise.
void ConfigReader::read_run_choice(TomlTable& table, const char* key, const char* site) {
  const RunChoice& choice = *run_choice_of_site(site);
  run_wide_.*choice.of_run = table.choice(key, choice.wide, choice.values);
}

void ConfigReader::read_ranks() {
  TomlTable table = section("ranks", {"gradients", "weights", "shard"});
  read_run_choice(table, "gradients", "communication.gradients");
  read_run_choice(table, "weights", "communication.weights");
  config_.engine.shard = sharding_from_name(
      table.choice("shard", "optimizer", {"optimizer", "weights"}), config_.file);
  table.refuse_unknown_keys();
}

void ConfigReader::read_optimizer() {
  TomlTable table = section(
      "optimizer", {"learning_rate", "min_ratio", "warmup_steps", "total_steps", "beta1", "beta2",
                    "eps", "weight_decay", "clip", "first_moment", "second_moment"});
  OptimizerConfig& optimizer = config_.engine.optimizer;
  optimizer.learning_rate = table.number("learning_rate", optimizer.learning_rate, 0, 1e3);
  optimizer.min_ratio = table.number("min_ratio", optimizer.min_ratio, 0, 1);
  optimizer.total_steps = table.integer("total_steps", config_.steps, 1, kStepsMax);
  optimizer.warmup_steps = table.integer(
      "warmup_steps", std::min(optimizer.warmup_steps, optimizer.total_steps), 0, kStepsMax);
  optimizer.beta1 = table.number("beta1", optimizer.beta1, 0, 0.999999);
  optimizer.beta2 = table.number("beta2", optimizer.beta2, 0, 0.999999999);
  optimizer.eps = table.number("eps", optimizer.eps, 1e-30, 1);
  optimizer.weight_decay = table.number("weight_decay", optimizer.weight_decay, 0, 100);
  optimizer.clip = table.number("clip", optimizer.clip, 0, 1e30);
  read_run_choice(table, "first_moment", "optimizer.first_moment");
  read_run_choice(table, "second_moment", "optimizer.second_moment");
  table.refuse_unknown_keys();
}

void ConfigReader::read_precision() {
  TomlTable table = section("precision", {"plan", "recipe", "required"});
  const std::string plan = table.text("plan", "");
  std::vector<std::string> recipes = recipe_names();
  std::ranges::replace(recipes, "none", "bf16");
  const std::string recipe = table.choice("recipe", "", recipes);
  const bool required = table.boolean("required", false);
  table.refuse_unknown_keys();
  if (plan.empty() == recipe.empty()) {
    table.refuse(
        plan.empty() ? "recipe" : "plan",
        fmt::format("either plan = \"FILE.toml\" or recipe = one of {}", fmt::join(recipes, ", ")));
  }
  if (!plan.empty()) {
    const fs::path path = beside_file(plan);
    if (!is_file_at(path)) table.refuse("plan", "the path of a precision plan");
    config_.plan = PrecisionPlan::load(path.string());
    config_.lines["plan"] = 0;
    const ModelConfig& model = config_.engine.model;
    config_.plan.check_sites(model.sites(), model.layers, path.string());
    check_plan_shapes(config_.plan, model,
                      int64_t{1} * config_.engine.batch.sequences * config_.engine.batch.tokens,
                      path.string());
  } else if (recipe != "bf16") {
    config_.plan = PrecisionPlan::fp8(recipe_from_name(recipe));
    try {
      check_plan_shapes(config_.plan, config_.engine.model,
                        int64_t{1} * config_.engine.batch.sequences * config_.engine.batch.tokens);
    } catch (const ConfigError& error) {
      throw ConfigError(table.file(), table.line_of("recipe"), "precision.recipe", error.value(),
                        error.accepted());
    }
  }
  config_.plan.required = config_.plan.required || required;
  const std::vector<PlanRule> first = PrecisionPlan().with_run(run_wide_).rules;
  config_.plan.rules.insert(config_.plan.rules.begin(), first.begin(), first.end());
}

void ConfigReader::read_checkpoint() {
  TomlTable table = section("checkpoint", {"every", "keep_last"});
  config_.checkpoint_every = table.integer("every", 100, 1, kStepsMax);
  config_.keep_last = whole(table, "keep_last", 3, 1, 1 << 20);
  table.refuse_unknown_keys();
}

void ConfigReader::read_controller() {
  TomlTable table =
      section("controller", {"url", "token_file", "ca_file", "certificate_file", "key_file",
                             "on_loss", "grace_seconds", "flush_seconds", "spool_bytes_max"});
  config_.controller = read_controller_access(table, overrides_.controller, beside_file(""));
  const std::string on_loss = table.choice("on_loss", "continue", {"continue", "bf16", "pause"});
  if (table.has("on_loss")) config_.on_loss = on_loss_from_name(on_loss);
  const double grace_seconds = table.number("grace_seconds", 60, 0, kLongest);
  if (table.has("grace_seconds")) config_.grace_seconds = grace_seconds;
  config_.flush_seconds = table.number("flush_seconds", 30, 0, kLongest);
  constexpr int64_t kMegabyte = 1 << 20;
  config_.spool_bytes_max =
      table.integer("spool_bytes_max", 64 * kMegabyte, 64 << 10, kMegabyte * kMegabyte);
  refuse_unknown_controller_keys(table);
}

void ConfigReader::read_statistics() {
  TomlTable table = section("statistics", {"every", "match", "tensors", "what_if", "sites_max"});
  StatisticsConfig& statistics = config_.statistics;
  statistics.every = table.integer("every", 0, 0, kStepsMax);
  statistics.match = table.texts("match", statistics.match);
  statistics.tensors = table.texts("tensors", statistics.tensors);
  statistics.what_if = table.texts("what_if", statistics.what_if);
  statistics.sites_max = whole(table, "sites_max", statistics.sites_max, 1, 1 << 20);
  table.refuse_unknown_keys();
  for (const char* key : {"match", "tensors", "what_if", "sites_max"}) {
    if (table.has(key) && !table.has("every")) {
      table.refuse(key, "nothing while statistics.every does not say every how many steps");
    }
  }
  if (statistics.every == 0) return;
  if (config_.engine.compute == Compute::kFp32) {
    table.refuse("every", "nothing for model.compute = \"fp32\", which rounds no tensor");
  }
  const ModelConfig& model = config_.engine.model;
  try {
    check_statistics(statistics, model.sites(), model.layers, config_.file);
  } catch (const ConfigError& error) {
    throw ConfigError(config_.file, config_.lines[error.key()], error.key(), error.value(),
                      error.accepted());
  }
}

void ConfigReader::read_verification() {
  TomlTable table = section("verification", {"inline", "confirm", "share_max"});
  constexpr double kLeast = 0.001;
  config_.verification.by_trainer = table.boolean("inline", false);
  config_.verification.confirms = table.boolean("confirm", true);
  config_.verification.share_max =
      table.number("share_max", config_.verification.share_max, kLeast, 1);
  if (table.has("share_max") && !config_.verification.by_trainer &&
      !config_.verification.confirms) {
    table.refuse("share_max",
                 "nothing while verification.inline and verification.confirm are false");
  }
  table.refuse_unknown_keys();
}

void ConfigReader::read_fault(TomlTable& table) {
  config_.engine.faults.push_back(gnomon::read_fault(table, config_.engine, config_.plan));
  config_.lines.emplace("fault", table.line());
  config_.lines.emplace("fault.site." + config_.engine.faults.back().site, table.line_of("site"));
}

// What one key alone cannot tell. The optimizer's cosine was read with the file's steps: --steps
// only shortens a run.
void ConfigReader::check_together() {
  if (overrides_.steps) config_.steps = *overrides_.steps;
  const ModelConfig& model = config_.engine.model;
  if (config_.engine.compute == Compute::kFp32 && any_fp8(config_)) {
    throw ConfigError(config_.file, config_.lines["model.compute"], "model.compute", "fp32",
                      "\"bf16\" for a plan with FP8");
  }
  const BatchConfig& batch = config_.engine.batch;
  if (batch.tokens > model.context) {
    throw ConfigError(config_.file, config_.lines["batch.tokens"], "batch.tokens",
                      std::to_string(batch.tokens),
                      fmt::format("at most model.context = {}", model.context));
  }
}

}  // namespace

ConfigError TrainerConfig::located(const ConfigError& error) const {
  // The engine names a section in place of a file.
  const auto sections = {"run",    "model",     "batch", "memory",
                         "engine", "optimizer", "ranks", "fault"};
  if (error.line() > 0 ||
      std::find(sections.begin(), sections.end(), error.file()) == sections.end()) {
    return error;
  }
  std::string key = error.file() + "." + error.key();
  auto line = lines.find(error.file() == "fault" ? key + "." + error.value() : key);
  if (line == lines.end()) line = lines.find(error.file());
  if (line == lines.end()) {
    // The engine's name for a key that stands elsewhere in the file.
    key = error.key() == "threads"             ? "run.threads"
          : error.key() == "heldout_sequences" ? "eval.sequences"
                                               : error.key();
    line = lines.find(key);
  }
  return ConfigError(file, line == lines.end() ? 0 : line->second, key, error.value(),
                     error.accepted());
}

bool TrainerConfig::check_device(const std::string& lacks_fp8) const {
  if (lacks_fp8.empty() || !any_fp8(*this)) return false;
  if (!plan.required) return true;
  throw ConfigError(
      file, lines.at("precision.required"), "precision.required", "true",
      fmt::format("a device with FP8 ({}), or a plan that does not require it", lacks_fp8));
}

TrainerConfig load_trainer_config(const std::string& file, const TrainerOverrides& overrides) {
  return ConfigReader(file, overrides).read();
}

}  // namespace gnomon
