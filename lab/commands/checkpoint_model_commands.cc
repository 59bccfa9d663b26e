// Checkpoints as models: `gnomon checkpoint show` and `gnomon checkpoint export`.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/errors.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "lab/commands/commands.h"
#include "trainer/engine/architecture.h"
#include "trainer/engine/hf_export.h"
#include "trainer/engine/hf_import.h"

namespace gnomon::cli {
namespace {

struct ModelOptions {
  std::string path;
  std::string out;
  std::string dtype;
  uint64_t shard_bytes_max = 5'000'000'000;
  bool json = false;
};

boost::json::object to_object(const HfCheckpoint& checkpoint) {
  const ModelConfig& model = checkpoint.config();
  boost::json::array files, dtypes;
  for (const std::string& file : checkpoint.weights().files()) files.emplace_back(file);
  for (const std::string& dtype : checkpoint.dtypes()) dtypes.emplace_back(dtype);
  return {{"path", checkpoint.weights().path().string()},
          {"model_type", family_of(model).type},
          {"parameters", model.parameters()},
          {"layers", model.layers},
          {"width", model.width},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim()},
          {"ffn", model.ffn},
          {"vocabulary", model.vocabulary},
          {"context", model.context},
          {"tie_embeddings", model.tie_embeddings},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", rope_scaling_name(model.rope_scaling.kind)},
          {"norm_eps", model.norm_eps},
          {"dtypes", std::move(dtypes)},
          {"files", std::move(files)},
          {"bytes", checkpoint.weights().bytes()}};
}

std::string in_words(const boost::json::value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_double()) return fmt::format("{}", value.get_double());
  if (!value.is_array()) return boost::json::serialize(value);
  std::string words;
  for (const boost::json::value& one : value.get_array())
    words += (words.empty() ? "" : ", ") + in_words(one);
  return words;
}

void show(const ModelOptions& options) {
  boost::json::object object = to_object(HfCheckpoint(options.path));
  const std::filesystem::path directory(options.path);
  if (std::filesystem::exists(directory / "trainer_state.json")) {
    const EngineConfig engine = read_engine_config(directory);
    object["compute"] = compute_name(engine.compute);
    object["from"] = engine.from.empty() ? boost::json::value("the seed") : engine.from.c_str();
  }
  if (options.json) {
    fmt::print("{}", pretty_json(object));
    return;
  }
  Table table({"what", "value"});
  for (const auto& [key, value] : object) {
    table.add({std::string(key),
               key == "bytes" ? format_bytes(value.to_number<double>()) : in_words(value)});
  }
  fmt::print("{}", table.text());
}

void write_model(const ModelOptions& options) {
  std::optional<Compute> dtype;
  if (!options.dtype.empty()) dtype = compute_from_name(options.dtype, "");
  const std::vector<std::string> files =
      export_hf(options.path, options.out, dtype, static_cast<int64_t>(options.shard_bytes_max));
  if (options.json) {
    boost::json::array names;
    for (const std::string& file : files) names.emplace_back(file);
    fmt::print("{}", pretty_json(boost::json::object{{"path", options.out}, {"files", names}}));
  } else {
    fmt::print("{}: {}\n", options.out, fmt::join(files, ", "));
  }
}

}  // namespace

void add_checkpoint_model_commands(Command& checkpoint) {
  auto options = std::make_shared<ModelOptions>();
  Command* show_command = checkpoint.add_subcommand(
      "show", "The model of a checkpoint, or of any directory that transformers saved");
  show_command->add_option("DIR", options->path, "Directory with config.json")->required();
  show_command->add_flag("--json", options->json, "Print JSON");
  show_command->footer("Example:\n  gnomon checkpoint show models/Qwen2-0.5B");
  show_command->callback([options] { show(*options); });

  Command* export_command = checkpoint.add_subcommand(
      "export", "Writes the model of a checkpoint alone, for transformers");
  export_command->add_option("DIR", options->path, "Checkpoint or model directory")->required();
  export_command->add_option("--out", options->out, "Directory to write; nothing may be there")
      ->required();
  export_command
      ->add_option("--dtype", options->dtype,
                   "bf16 or fp32 (of a checkpoint: the FP32 masters); without it as stored")
      ->check(one_of({"bf16", "fp32"}));
  export_command
      ->add_option("--max-shard-size", options->shard_bytes_max,
                   "Bytes of weights in a file at most, like 5GB or 500MB")
      ->size_in_bytes()
      ->check(positive_number())
      ->capture_default_str();
  export_command->add_flag("--json", options->json, "Print JSON");
  export_command->footer(
      "Example:\n  gnomon checkpoint export runs/demo/checkpoints/attempt-0001/step-00000120 "
      "--out model --dtype bf16");
  export_command->callback([options] { write_model(*options); });
}

}  // namespace gnomon::cli
