// The target of the trainer: its configuration, in a folder with a dataset, a precision plan and a
// model to begin with, which the configuration may name.
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "base/temporary_directory.h"
#include "storage/dataset_description.h"
#include "storage/safetensors.h"
#include "storage/shard_series.h"
#include "tests/fuzz/targets.h"
#include "trainer/config.h"
#include "trainer/engine/parameters.h"

namespace gnomon::fuzz {
namespace {

void write_dataset(const std::filesystem::path& folder) {
  std::filesystem::create_directory(folder);
  DatasetDescription description;
  for (const bool heldout : {false, true}) {
    ShardSeries series(folder, heldout, false, 4096);
    series.append(std::vector<uint32_t>(heldout ? 600 : 4000, 7));
    for (const ShardDescription& shard : series.finish()) description.shards.push_back(shard);
  }
  description.info.tokenizer = "bytes";
  description.info.vocabulary = 257;
  description.info.train_tokens = 4000;
  description.info.heldout_tokens = 600;
  description.info.content_hash = content_hash(description.shards);
  write_plainly(folder / kDatasetFile, to_json(description));
}

void write_model(const std::filesystem::path& folder) {
  std::filesystem::create_directory(folder);
  const ModelConfig model{.layers = 1, .width = 16, .heads = 2, .ffn = 16, .vocabulary = 257};
  const ParameterLayout layout(model);
  const std::vector<float> zeros(static_cast<size_t>(layout.elements()));
  std::vector<TensorView> tensors;
  for (const Parameter& parameter : layout.all())
    tensors.push_back({parameter.name, "F32", parameter.shape, zeros.data()});
  write_plainly(folder / "config.json", model.to_hf_json());
  write_safetensors(folder / "model.safetensors", tensors);
}

class Surroundings {
 public:
  Surroundings() {
    write_dataset(folder_ / "data");
    write_model(folder_ / "model");
    write_plainly(folder_ / "plan.toml", PrecisionPlan::fp8(Recipe::kDelayed).to_toml());
    write_plainly(folder_ / "token", "a-token\n");
  }
  std::string run_file() const { return folder_ / "run.toml"; }

 private:
  TemporaryDirectory folder_;
};

const Surroundings& surroundings() {
  static const Surroundings made;
  return made;
}

void check_model(const TrainerConfig& config) {
  config.engine.model.check();
  require(config.steps >= 1 && config.checkpoint_every >= 1, "a run without steps");
  require(config.dir.is_absolute(), "a run's directory is not absolute");
  require(!config.check_device(""), "a device that lacks nothing is refused FP8");
  const std::vector<std::string> sites = config.engine.model.sites();
  config.plan.check_sites(sites, config.engine.model.layers);
}

void run_trainer_config(std::span<const uint8_t> input) {
  const std::string file = surroundings().run_file();
  write_plainly(file, text_of(input));
  try {
    check_model(load_trainer_config(file, {}));
  } catch (const ConfigError& error) {
    require(!error.accepted().empty(), "a configuration is refused without a word");
  }
}

constexpr std::array kTrainerTargets = {Target{"trainer_config", run_trainer_config, 2'000}};

}  // namespace

std::span<const Target> trainer_targets() {
  surroundings();  // made before any input's memory is counted
  return kTrainerTargets;
}

}  // namespace gnomon::fuzz
