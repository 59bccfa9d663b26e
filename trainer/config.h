// The trainer's configuration: one TOML file (docs/trainer.md explains every key) and what the
// command line overrides.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/errors.h"
#include "protocol/client_options.h"
#include "protocol/precision_plan.h"
#include "protocol/settings.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon {

// What the trainer does when the controller has been away for some time.
enum class OnLoss { kContinue, kBf16, kPause };  // in the order of kOnLossWords, but for the first
// Nothing for another name.
std::optional<OnLoss> on_loss_from_name(const std::string& name);

// What the trainer verifies itself: windows of its run, by replays between two steps, and
// gradients, by computing them twice.
struct VerificationConfig {
  bool by_trainer = false;
  bool confirms = true;
  double share_max = 0.2;
  double recompute_share = 0;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = VerificationConfig;
    v("inline", &S::by_trainer,
      Setting{.help = "The trainer [replays](#verification-by-the-trainer-itself) its windows "
                      "between steps."});
    v("confirm", &S::confirms,
      Setting{.help = "The trainer does replays that need a second source and have none: for an "
                      "alarm or odd answer of a lone verifier, or if two disagree ([decision "
                      "28](decisions/0028-nobodys-word-is-enough.md))."});
    v("share_max", &S::share_max,
      Setting{.range = {0.001, 1},
              .help = "No replay starts while replays exceed this share of the run's time."});
    v("recompute_share", &S::recompute_share,
      Setting{.range = {0, 1},
              .help = "Share of random steps that are [computed twice](#gradients-computed-twice); "
                      "0.01 makes a run about 1% longer. 0: off."});
  }
  void settle(const TomlTable& table) const;
  // True for the steps that are computed twice: a function of these numbers alone.
  bool recomputes(int64_t seed, int64_t attempt, int64_t step) const;
};

struct TrainerConfig {
  std::string file;
  std::string name;
  std::string job_id;
  std::filesystem::path dir;  // absolute
  int64_t steps = 0;
  std::string watch_gpu;  // PCI bus id of the GPU whose health is reported; empty: that of
                          // run.device, if it is a GPU
  EngineConfig engine;
  PrecisionPlan plan;       // the run's base plan
  PrecisionPlan file_plan;  // what [precision] says, whatever the device can do
  int64_t checkpoint_every = 0;
  int keep_last = 0;
  ClientOptions controller;             // without a URL: train without one
  std::optional<OnLoss> on_loss;        // else what the run's policy says, once it is known
  std::optional<double> grace_seconds;  // likewise
  double flush_seconds = 0;  // how long the end waits for the controller to take the last reports
  int64_t spool_bytes_max = 0;
  StatisticsConfig statistics;
  VerificationConfig verification;

  // Where keys stand in the file ("model.heads" → 12), for errors found after reading.
  std::map<std::string, int> lines;
  // Throws ConfigError when the plan requires FP8 and the device lacks it (Engine::lacks_fp8()).
  // Returns whether the plan must give way to BF16.
  bool check_device(const std::string& lacks_fp8) const;
  // The same error with the file and line that the key has here.
  ConfigError located(const ConfigError& error) const;
};

// What the command line says in place of the file.
struct TrainerOverrides {
  std::optional<std::string> job_id;
  std::optional<std::string> dir;
  std::optional<std::string> data;
  std::optional<std::string> controller;
  std::optional<int64_t> steps;
  std::optional<int> threads;
  std::optional<std::string> device;
};

// Reads and checks everything that can be checked without taking memory or writing to the disk.
// Relative paths in the file are relative to the file's folder, those of `overrides` to the current
// one. Throws ConfigError.
TrainerConfig load_trainer_config(const std::string& file, const TrainerOverrides& overrides);

}  // namespace gnomon
