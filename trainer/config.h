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
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon {

// What the trainer does when the controller has been away for some time.
enum class OnLoss { kContinue, kBf16, kPause };
// "continue", "bf16", "pause"; nothing for another name.
std::optional<OnLoss> on_loss_from_name(const std::string& name);

// What the trainer replays of its run's windows itself, between two steps.
struct VerificationConfig {
  bool by_trainer = false;  // all, where there is no verifier
  bool confirms = true;     // those that need a second source and have no other
  double share_max = 0.2;   // of the run's time that no further replay begins beyond
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
  PrecisionPlan plan;  // the run's base plan
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
