// gnomon-trainer: trains a model under a precision plan, and under a controller if there is one.
#include <fmt/format.h>

#include <cstdio>
#include <thread>

#include "base/command_line.h"
#include "base/errors.h"
#include "base/host.h"
#include "base/sleeping_threads.h"
#include "base/version.h"
#include "kernels/comm/start_collectives.h"
#include "trainer/config.h"
#include "trainer/console.h"
#include "trainer/engine/engine_ranks.h"
#include "trainer/loop.h"
#include "trainer/shutdown.h"

namespace {

using namespace gnomon;

constexpr int kStatusFailed = 1;
constexpr int kStatusConfig = 2;

constexpr const char* kFooter = R"(
Example:
  gnomon data prepare --input texts/ --out data --tokenizer sentencepiece:2048
  gnomon-trainer --config run.toml --dir runs/first --controller none

with run.toml:
  [run]
  steps = 1000
  [model]
  layers = 4
  width = 128
  [data]
  dir = "data"
  [precision]
  recipe = "current"        # every GEMM in FP8; "bf16" for none; plan = "FILE.toml" for rules

Several ranks: mpirun -n 2 gnomon-trainer --config run.toml (docs/data_parallel.md).

docs/trainer.md explains every key. Killed in any way, the trainer goes on from its newest checkpoint when it is
started again with the same --dir. SIGTERM, SIGINT and SIGUSR1 finish the step, write a checkpoint and end with status 0; a
second signal ends at once.

Under Slurm, with requeueing: docs/slurm.md.

Exit status: 0 finished, stopped or interrupted in order (--interrupted-status has another one for the last); 1 failed; 2 the
configuration cannot be accepted (nothing was started).)";

struct Arguments {
  std::string config;
  TrainerOverrides overrides;
  bool must_resume = false;
  bool must_start = false;
  bool check = false;
  int interrupted_status = 0;
  std::string level = "info";
};

void define(Command& app, Arguments& arguments) {
  app.set_version_flag(
      fmt::format("gnomon-trainer {} ({}, {}, {})", kVersion, kRevision, kCompiler, kBuildType));
  app.footer(kFooter);
  app.add_option("--config", arguments.config, "The run's TOML file")
      ->required()
      ->type_name("FILE");
  app.add_option("--job-id", arguments.overrides.job_id,
                 "The run's identity beside its name, in place of [run] job_id; a batch system's "
                 "job, like 36199_0")
      ->type_name("ID");
  app.add_option("--dir", arguments.overrides.dir, "The run's directory, in place of [run] dir")
      ->type_name("DIR");
  app.add_option("--data", arguments.overrides.data,
                 "The dataset's directory, in place of [data] dir")
      ->type_name("DIR");
  app.add_option("--controller", arguments.overrides.controller,
                 "gnomond's URL or \"none\", in place of [controller] url")
      ->type_name("URL");
  app.add_option("--steps", arguments.overrides.steps,
                 "Train up to this step, in place of [run] steps; the learning rate's schedule "
                 "stays the file's")
      ->type_name("N");
  app.add_option("--threads", arguments.overrides.threads, "In place of [run] threads")
      ->type_name("N");
  app.add_option("--device", arguments.overrides.device, "In place of [run] device")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("cpu|cuda");
  auto* resume = app.add_flag("--resume", arguments.must_resume,
                              "Refuse to start from scratch: a run must be there");
  app.add_flag("--new", arguments.must_start,
               "Refuse to go on with a run: the directory must have none")
      ->excludes(resume);
  app.add_flag("--check", arguments.check, "Check the configuration and end; nothing is started");
  app.add_option("--interrupted-status", arguments.interrupted_status,
                 "Exit status when a signal ended it in order before the run's end, so that a "
                 "batch system starts it again")
      ->check(in_range(0, 125))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--log-level", arguments.level, "How much to log on stderr")
      ->check(one_of({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

int run(const Arguments& arguments, EngineRanks& ranks) {
  TrainerConfig config;
  try {
    config = load_trainer_config(arguments.config, arguments.overrides);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomon-trainer: %s\n", error.what());
    return kStatusConfig;
  }
  Shutdown shutdown;
  EndingSignals signals([&shutdown](int) { shutdown.request(); });
  Console console("gnomon-trainer", arguments.level);
  const ResumeMode mode = arguments.must_resume  ? ResumeMode::kMustResume
                          : arguments.must_start ? ResumeMode::kMustStart
                                                 : ResumeMode::kAuto;
  try {
    if (arguments.check) {
      Engine check(config.engine, EngineRole::kLive, &ranks);
      if (config.check_device(check.lacks_fp8())) {
        fmt::print("{}: the run would be in BF16: of FP8, {}\n", config.file, check.lacks_fp8());
      }
      fmt::print("{}: accepted; {} parameters, {} steps of {} tokens\n", config.file,
                 config.engine.model.parameters(), config.steps,
                 config.engine.batch.tokens_per_step());
      return 0;
    }
    TrainingLoop loop(config, mode, console, shutdown, &ranks);
    return loop.run() ? 0 : arguments.interrupted_status;
  } catch (const Interrupted& interrupted) {
    std::fprintf(stderr, "gnomon-trainer: %s\n", interrupted.what());
    return arguments.interrupted_status;
  } catch (const ConfigError& error) {
    std::fprintf(stderr, "gnomon-trainer: %s\n", config.located(error).what());
    return kStatusConfig;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomon-trainer: %s\n", error.what());
    return kStatusFailed;
  }
}

int start(int argc, char** argv) {
  Command app(
      "Trains a Llama-style language model under a precision plan (FP8 or BF16 for each GEMM), "
      "writes\n"
      "checkpoints, reports every step to gnomond and obeys its directives.",
      "gnomon-trainer");
  Arguments arguments;
  define(app, arguments);
  if (const auto status = app.parse(argc, argv, kStatusConfig)) return *status;
  block_ending_signals();  // those that do not lead leave them blocked: a launcher passes them on
  const std::unique_ptr<Collectives> collectives = start_collectives();
  return lead_or_follow(*collectives, [&](EngineRanks& ranks) { return run(arguments, ranks); });
}

}  // namespace

int main(int argc, char** argv) {
  make_waiting_threads_sleep(argv);
  allow_many_files();
  try {
    return start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomon-trainer: %s\n", error.what());
    return kStatusFailed;
  }
}
