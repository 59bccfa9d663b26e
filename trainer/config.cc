#include "trainer/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/files.h"
#include "base/named_file.h"
#include "base/philox.h"
#include "base/redaction.h"
#include "storage/token_shards.h"
#include "trainer/config_controller.h"
#include "trainer/config_file.h"
#include "trainer/engine/fault_check.h"
#include "trainer/engine/hf_import.h"
#include "trainer/engine/plan_shapes.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

bool any_fp8(const TrainerConfig& config) {
  const ModelConfig& model = config.engine.model;
  return std::ranges::any_of(model.sites(), [&](const std::string& site) {
    return config.plan.resolve(site, model.layers).any_fp8();
  });
}

// Makes a run's configuration of its file and of what the command line says in place of it.
class ConfigBuilder {
 public:
  ConfigBuilder(const std::string& file, const TrainerOverrides& overrides)
      : overrides_(overrides), root_(TomlTable::parse(read_named_file_or_pipe(file), file)) {
    config_.file = file;
    try {
      read_settings(root_, file_);
    } catch (const ConfigError& error) {
      // People write a token where the name of its file belongs.
      throw error.key().starts_with("controller.") ? without_secrets(error) : error;
    }
  }

  TrainerConfig build() {
    note_lines();
    apply_run();
    apply_settings();
    apply_model(apply_data());
    apply_precision();
    apply_controller();
    config_.file_plan = config_.plan;
    check_together();
    apply_faults();
    return std::move(config_);
  }

 private:
  fs::path beside_file(const std::string& path) const {
    return (fs::absolute(config_.file).parent_path() / path).lexically_normal();
  }

  void note_lines();
  void apply_run();
  void apply_dir();
  void apply_settings();
  int32_t apply_data();
  void apply_model(int32_t vocabulary);
  void apply_precision();
  void apply_controller();
  void check_together();
  void apply_faults();

  const TrainerOverrides& overrides_;
  TrainerConfig config_;
  TomlTable root_;
  ConfigFile file_;
};

void ConfigBuilder::note_lines() {
  const std::vector<SettingRow> rows = list_settings(file_);
  TomlTable root = root_;
  for (const SettingRow& row : rows) {
    if (row.table.find('[') != std::string::npos) continue;
    const TomlTable table = root.table(row.table);
    config_.lines[row.table] = table.line();
    const bool of_model = row.table == "model" && table.has("from") && row.key != "compute";
    config_.lines[row.path()] = table.line_of(of_model ? "from" : std::string_view(row.key));
  }
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

template <typename T>
void check_option(const char* option, const std::optional<T>& value, const Range& range) {
  if (!value) return;
  const auto number = static_cast<double>(*value);
  if (number < range.least || number > range.most) {
    throw ConfigError("", 0, option, std::to_string(*value),
                      fmt::format("{} to {}", range.least, range.most));
  }
}

void ConfigBuilder::apply_dir() {
  const std::string given = overrides_.dir.value_or(
      file_.run.dir.value_or(fmt::format("runs/{}-{}", config_.name, config_.job_id)));
  if (!given.empty()) {
    config_.dir = overrides_.dir ? fs::absolute(given).lexically_normal() : beside_file(given);
  }
  const std::string wrong = given.empty() ? "it is empty" : why_no_directory(config_.dir);
  if (!wrong.empty()) {
    throw ConfigError(overrides_.dir ? "" : config_.file,
                      overrides_.dir ? 0 : config_.lines.at("run.dir"),
                      overrides_.dir ? "--dir" : "run.dir", toml_quoted(given),
                      fmt::format("a directory, or a path where one can be made ({})", wrong));
  }
}

void ConfigBuilder::apply_run() {
  const RunTable& run = file_.run;
  config_.name = run.name;
  config_.job_id = overrides_.job_id.value_or(run.job_id);
  if (const std::string accepted = identifier_error(config_.job_id); !accepted.empty()) {
    throw ConfigError("", 0, "--job-id", toml_quoted(config_.job_id), accepted);
  }
  apply_dir();
  check_option("--steps", overrides_.steps, RunTable::kSteps);
  check_option("--threads", overrides_.threads, EngineConfig::kThreads);
  // The optimizer's cosine was read with the file's steps: --steps only shortens a run.
  config_.steps = overrides_.steps.value_or(run.steps);
  const int cores = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 1024);
  config_.engine.seed = run.seed;
  config_.engine.threads = overrides_.threads.value_or(run.threads.value_or(cores));
  config_.engine.device =
      overrides_.device ? device_from_name(*overrides_.device, "--device") : run.device;
  config_.watch_gpu = run.watch_gpu.value_or("");
}

// What is in the configuration as it stands in the file.
void ConfigBuilder::apply_settings() {
  EngineConfig& engine = config_.engine;
  engine.batch = file_.batch;
  engine.memory = file_.memory;
  engine.optimizer = file_.optimizer;
  engine.shard = file_.ranks.shard;
  engine.compute = file_.model.compute;
  engine.heldout_sequences = file_.eval.sequences;
  config_.checkpoint_every = file_.checkpoint.every;
  config_.keep_last = file_.checkpoint.keep_last;
  config_.statistics = file_.statistics;
  config_.verification = file_.verification;
}

// Returns the vocabulary.
int32_t ConfigBuilder::apply_data() {
  const std::string given = overrides_.data.value_or(file_.data.dir);
  fs::path path;
  if (!given.empty()) {
    path = overrides_.data ? fs::absolute(given).lexically_normal() : beside_file(given);
  }
  if (path.empty() || !is_file_at(path / "dataset.json")) {
    throw ConfigError(config_.file, config_.lines.at("data.dir"),
                      overrides_.data ? "--data" : "data.dir", toml_quoted(given),
                      "a directory with a dataset.json, as `gnomon data prepare` makes it");
  }
  config_.engine.data = path.string();
  const Dataset dataset = Dataset::open(path);
  const TomlTable eval = root_.table("eval");
  const int64_t tokens = config_.engine.batch.tokens;
  const int64_t available = (dataset.heldout.tokens() - 1) / tokens;
  if (eval.has("sequences") && available > 0 && config_.engine.heldout_sequences > available) {
    eval.refuse("sequences",
                fmt::format("1 to {}: {} holds out {} tokens, and a sequence has {}", available,
                            path.string(), dataset.heldout.tokens(), tokens));
  }
  return dataset.info.vocabulary;
}

void ConfigBuilder::apply_model(int32_t vocabulary) {
  ModelConfig& model = config_.engine.model;
  model = file_.model.shape;
  if (model.vocabulary == 0) model.vocabulary = vocabulary;
  if (const fs::path from = file_.model.from; !from.empty()) {
    if (!is_file_at(from / "config.json")) {
      root_.table("model").refuse(
          "from", "a directory with config.json and safetensors, as transformers saves a model");
    }
    config_.engine.from = from.string();
    model = HfCheckpoint(from).config();
  }
  // Before anybody makes a list of its layers.
  try {
    model.check();
  } catch (const ConfigError& error) {
    throw config_.located(error);
  }
}

void ConfigBuilder::apply_precision() {
  const TomlTable table = root_.table("precision");
  const ModelConfig& model = config_.engine.model;
  const BatchConfig& batch = config_.engine.batch;
  const int64_t tokens = int64_t{1} * batch.sequences * batch.tokens;
  const std::string recipe = file_.precision.recipe.value_or("bf16");
  if (const std::string& plan = file_.precision.plan; !plan.empty()) {
    if (!is_file_at(plan)) table.refuse("plan", "the path of a precision plan");
    config_.plan = PrecisionPlan::load(plan);
    config_.plan.check_sites(model.sites(), model.layers, plan);
    check_plan_shapes(config_.plan, model, tokens, plan);
  } else if (recipe != "bf16") {
    config_.plan = PrecisionPlan::fp8(recipe_from_name(recipe));
    try {
      check_plan_shapes(config_.plan, model, tokens);
    } catch (const ConfigError& error) {
      throw ConfigError(table.file(), table.line_of("recipe"), "precision.recipe", error.value(),
                        error.accepted());
    }
  }
  config_.plan.required = config_.plan.required || file_.precision.required;
  // What the plan's own rules do not speak of.
  const RunPrecision wide{file_.optimizer.first_moment, file_.optimizer.second_moment,
                          file_.ranks.gradients, file_.ranks.weights};
  const std::vector<PlanRule> first = PrecisionPlan().with_run(wide).rules;
  config_.plan.rules.insert(config_.plan.rules.begin(), first.begin(), first.end());
}

void ConfigBuilder::apply_controller() {
  const ControllerTable& from = file_.controller;
  config_.controller = controller_access(from, overrides_.controller, root_.table("controller"));
  config_.on_loss = from.on_loss;
  config_.grace_seconds = from.grace_seconds;
  config_.flush_seconds = from.flush_seconds;
  config_.spool_bytes_max = from.spool_bytes_max;
}

// What one table alone cannot tell.
void ConfigBuilder::check_together() {
  const ModelConfig& model = config_.engine.model;
  const std::vector<std::string> sites = model.sites();
  if (config_.engine.compute == Compute::kFp32 && any_fp8(config_)) {
    throw ConfigError(config_.file, config_.lines.at("model.compute"), "model.compute", "fp32",
                      "\"bf16\" for a plan with FP8");
  }
  const BatchConfig& batch = config_.engine.batch;
  if (batch.tokens > model.context) {
    throw ConfigError(config_.file, config_.lines.at("batch.tokens"), "batch.tokens",
                      std::to_string(batch.tokens),
                      fmt::format("at most model.context = {}", model.context));
  }
  if (config_.statistics.every == 0) return;
  try {
    check_statistics(config_.statistics, sites, model.layers, config_.file);
  } catch (const ConfigError& error) {
    throw ConfigError(config_.file, config_.lines[error.key()], error.key(), error.value(),
                      error.accepted());
  }
}

// A fault of moments or communication acts where the plan has them in FP8 alone.
void check_plan_feels(const TomlTable& table, FaultKind kind, const RunPrecision& run) {
  if (kind == FaultKind::kFp8SecondMoment && run.second_moment != "fp8") {
    table.refuse("kind", "this fault in a run with optimizer.second_moment = \"fp8\"");
  }
  if (kind == FaultKind::kWireScaleShift && run.gradients == "full") {
    table.refuse("kind", "this fault in a run with ranks.gradients in FP8");
  }
}

void ConfigBuilder::apply_faults() {
  const std::vector<TomlTable> tables = root_.tables("fault");
  for (size_t i = 0; i < tables.size(); ++i) {
    const Fault& fault = file_.faults[i];
    check_plan_feels(tables[i], fault.kind, config_.plan.of_run());
    try {
      check_fault(fault, config_.engine);
    } catch (const ConfigError& error) {
      tables[i].refuse(error.key(), error.accepted());
    }
    config_.engine.faults.push_back(fault);
    config_.lines.emplace("fault", tables[i].line());
    config_.lines.emplace("fault.site." + fault.site, tables[i].line_of("site"));
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

bool VerificationConfig::recomputes(int64_t seed, int64_t attempt, int64_t step) const {
  // A stream that nothing else draws from, and attempts that follow each other in it.
  constexpr uint64_t kStream = uint64_t{0x7ec0} << 48;
  const uint32_t word =
      philox(static_cast<uint64_t>(seed), kStream + static_cast<uint64_t>(attempt),
             static_cast<uint64_t>(step))[0];
  return static_cast<double>(word) < recompute_share * 0x1p32;
}

bool TrainerConfig::check_device(const std::string& lacks_fp8) const {
  if (lacks_fp8.empty() || !any_fp8(*this)) return false;
  if (!plan.required) return true;
  throw ConfigError(
      file, lines.at("precision.required"), "precision.required", "true",
      fmt::format("a device with FP8 ({}), or a plan that does not require it", lacks_fp8));
}

TrainerConfig load_trainer_config(const std::string& file, const TrainerOverrides& overrides) {
  return ConfigBuilder(file, overrides).build();
}

}  // namespace gnomon
