#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "base/errors.h"
#include "cli/json_output.h"
#include "cli/paths.h"
#include "cli/statistics_table.h"
#include "lab/commands/commands.h"
#include "lab/commands/replay_device.h"
#include "protocol/json.h"
#include "protocol/json_text.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::cli {
namespace {

struct InspectOptions {
  std::string checkpoint;
  int64_t batch = 0;
  StatisticsConfig statistics;
  std::vector<std::string> dumps;
  std::string out = "tensors.safetensors";
  std::string sort = "sqnr_db";
  ReplayDevice on;
  bool json = false;
};

// The commands name their own options where the trainer's file has keys.
[[noreturn]] void rethrow_for_command_line(const ConfigError& error) {
  std::string option = error.key();
  if (option == "statistics.match") option = "--match";
  if (option == "statistics.what_if") option = "--what-if";
  if (option == "statistics.tensors") option = "--tensor";
  throw ConfigError("", 0, option, error.value(), error.accepted());
}

// Before the work rather than behind it.
void require_place_for(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) throw SystemError("write", file, ENOENT);
}

void inspect(InspectOptions& options) try {
  check_sort_key(options.sort);
  require_checkpoint("--checkpoint", options.checkpoint);
  for (const std::string& recipe : options.statistics.what_if) {
    what_if_precision(recipe, "", "--what-if");
  }
  if (!options.dumps.empty()) require_place_for(options.out);
  EngineConfig config = read_engine_config(options.checkpoint);
  if (options.on.threads > 0) config.threads = options.on.threads;
  if (options.on.device) config.device = *options.on.device;
  Engine engine(config, EngineRole::kReplay);
  options.statistics.sites_max = static_cast<int>(config.model.sites().size());
  std::unique_ptr<StatisticsCollector> collector = engine.statistics(options.statistics, "");
  for (const std::string& dump : options.dumps) {
    const size_t colon = dump.rfind(':');
    if (colon == std::string::npos) {
      throw ConfigError("", 0, "--dump", dump,
                        "SITE:TENSOR, as in model.layers.0.mlp.up_proj:input");
    }
    collector->dump(dump.substr(0, colon), dump.substr(colon + 1));
  }
  engine.load(options.checkpoint);
  const int64_t step = options.batch > 0 ? options.batch : engine.step() + 1;
  const double loss = engine.inspect(step, *collector);
  if (!options.dumps.empty()) collector->write_dumps(options.out);
  StatisticsReport report;
  report.step = step;
  report.plan_version = engine.plan().version;
  report.rows = collector->rows();
  if (options.json) {
    boost::json::object object = parse_json_exactly(to_json(report)).as_object();
    object["loss"] = json_number(loss);
    object["checkpoint"] = options.checkpoint;
    object["checkpoint_step"] = engine.step();
    fmt::print("{}", pretty_json(object));
    return;
  }
  fmt::print("{}", statistics_table(report.rows, options.sort));
  fmt::print(
      "checkpoint of step {}, batch {}: loss {} nats per token; a recipe with ? is a what "
      "if\n",
      engine.step(), step, loss);
  if (!options.dumps.empty()) fmt::print("tensors written to {}\n", options.out);
} catch (const ConfigError& error) {
  rethrow_for_command_line(error);
}

}  // namespace

void add_inspect_command(Command& app, Context&) {
  auto options = std::make_shared<InspectOptions>();
  Command* command = app.add_subcommand(
      "inspect", "Statistics of a checkpoint's tensors in one batch, without training");
  command->add_option("--checkpoint", options->checkpoint, "Checkpoint directory")->required();
  command
      ->add_option("--batch", options->batch,
                   "The step whose first micro-batch runs; without it the checkpoint's next step")
      ->check(in_range(int64_t{1}, int64_t{1} << 40));
  command
      ->add_option("--what-if", options->statistics.what_if,
                   "Recipes to ask about besides the one in use, as block or mx:e2m1")
      ->take_all();
  command->add_option("--match", options->statistics.match, "Globs over GEMM sites")
      ->take_all()
      ->capture_default_str();
  command
      ->add_option("--tensor", options->statistics.tensors,
                   "input, weight, gradient, output, weight_gradient")
      ->take_all()
      ->capture_default_str();
  command->add_option("--dump", options->dumps,
                      "SITE:TENSOR to write to --out, with its rounded copies");
  command->add_option("--out", options->out, "The safetensors file of --dump")
      ->capture_default_str();
  command->add_option("--sort", options->sort, "site, tensor or the name of a number, worst first")
      ->capture_default_str();
  add_replay_device_options(*command, options->on);
  command->add_flag("--json", options->json, "Print JSON, with every number in full");
  command->footer(
      "Example:\n  gnomon inspect --checkpoint runs/demo/checkpoints/attempt-0001/step-00000120 "
      "--what-if block mx --sort underflow");
  command->callback([options] { inspect(*options); });
}

}  // namespace gnomon::cli
