// A run's TOML file as it stands there, table by table. docs/trainer.md has a table made of these
// descriptions; config.h is what becomes of it.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records/run.h"
#include "protocol/settings.h"
#include "trainer/config.h"

namespace gnomon {

// What [precision] recipe may be: a recipe of a whole run, or "bf16".
std::span<const std::string_view> run_recipes();

// What would be accepted in place of such a text; empty when it is fine.
std::string identifier_error(std::string_view name);
std::string bus_id_error(std::string_view id);

struct RunTable {
  static constexpr Range kSteps = {1, kRunStepsMax};

  std::string name = "run";
  std::string job_id = "1";
  std::optional<std::string> dir;
  int64_t seed = 1;
  int64_t steps = 1000;
  std::optional<int> threads;
  Device device = Device::kCpu;
  std::optional<std::string> watch_gpu;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = RunTable;
    v("name", &S::name,
      Setting{.check = identifier_error,
              .accepted = "letters, digits, `_`, `-`, `.`",
              .help = "With `job_id` the run's identity at the controller."});
    v("job_id", &S::job_id,
      Setting{.check = identifier_error,
              .accepted = "letters, digits, `_`, `-`, `.`",
              .help = "`--job-id` takes its place ([slurm.md](slurm.md))."});
    v("dir", &S::dir,
      Setting{.otherwise = "`runs/NAME-JOB`",
              .accepted = "a directory",
              .help = "The run's: one run, one trainer at a time."});
    v("seed", &S::seed,
      Setting{.range = EngineConfig::kSeed, .help = "Of the weights and the order of the data."});
    v("steps", &S::steps, Setting{.range = kSteps, .help = "The last step."});
    v("threads", &S::threads,
      Setting{.range = EngineConfig::kThreads,
              .otherwise = "all cores",
              .help = "Part of the fingerprint: bits are the same only for the same number."});
    v("device", &S::device,
      Setting{.words = kDevices,
              .help = "`cuda`: the first GPU that the process sees; with several ranks, that of "
                      "the local rank. Refused, each with its reason: no driver, a driver older "
                      "than the toolkit, no GPU, one that the build has no code for, widths that "
                      "are no multiples of 16, too little memory (below)."});
    v("watch_gpu", &S::watch_gpu,
      Setting{.check = bus_id_error,
              .otherwise = "the GPU that the run trains on",
              .accepted = "a PCI bus id, like `\"0000:01:00.0\"`",
              .help = "The GPU whose health goes with the step reports (below)."});
  }
};

struct ModelTable {
  std::string from;
  Compute compute = Compute::kBf16;
  ModelConfig shape = {.vocabulary = 0};  // 0: the dataset's

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("from", &ModelTable::from,
      Setting{.file = true,
              .accepted = "a directory",
              .help = "A Llama or Qwen2 directory of `transformers` to begin with, in place of the "
                      "shape and of weights from the seed: [models.md](models.md)."});
    ModelConfig::describe([&](const char* key, auto member, const Setting& setting) {
      v(
          key, [member](auto& s) -> auto& { return s.shape.*member; }, setting);
    });
    v("compute", &ModelTable::compute,
      Setting{.words = kComputes,
              .help = "What weights, activations and GEMMs are where the plan says BF16. `fp32` "
                      "takes no plan with FP8."});
  }
  void settle(const TomlTable& table);
};

struct DataTable {
  std::string dir;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("dir", &DataTable::dir,
      Setting{
          .accepted = "a directory",
          .help = "A dataset made by `gnomon data prepare`. Must be given, here or by `--data`."});
  }
};

struct EvalTable {
  int sequences = 32;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("sequences", &EvalTable::sequences,
      Setting{.range = EngineConfig::kHeldoutSequences,
              .otherwise = "all there are, if that is less",
              .help = "Held-out sequences of `batch.tokens` each that evaluations use. More than "
                      "the held-out split has are refused."});
  }
};

struct OptimizerTable : OptimizerConfig {
  std::string first_moment = "fp32";
  std::string second_moment = "fp32";

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = OptimizerTable;
    OptimizerConfig::describe(v);
    v("first_moment", &S::first_moment,
      Setting{.words = kMomentWords,
              .help = "How the first moment is stored. `fp8` is E4M3 with block scales "
                      "([data_parallel.md](data_parallel.md)). Becomes a rule before those of the "
                      "run's first plan; a plan set later says it itself."});
    v("second_moment", &S::second_moment,
      Setting{.words = kMomentWords,
              .help = "How the second moment is stored. `fp8` is E5M2 with block scales. "
                      "Becomes a rule of the first plan like `first_moment`."});
  }
  // Gives what is absent the optimizer's own default, and refuses what it has no use for.
  void settle(const TomlTable& table);
};

struct RanksTable {
  std::string gradients = "full";
  std::string weights = "full";
  Sharding shard = Sharding::kOptimizer;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = RanksTable;
    v("gradients", &S::gradients,
      Setting{
          .words = kWireWords,
          .help =
              "How gradients travel between ranks. `e4m3`, `e5m2`: a scale for each 128 "
              "elements; `:tensor`: one for a tensor. Becomes a rule of the first plan like the "
              "moments."});
    v("weights", &S::weights,
      Setting{.words = kWireWords, .help = "How weights travel between ranks; likewise."});
    v("shard", &S::shard,
      Setting{.words = kShardings,
              .help = "What ranks share out: masters and moments; or, with `weights`, the working "
                      "weights too, which a layer's pass then gathers. No bit changes; a single "
                      "process ignores it ([data_parallel.md](data_parallel.md))."});
  }
};

struct PrecisionTable {
  std::optional<std::string> recipe;
  std::string plan;
  bool required = false;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = PrecisionTable;
    v("recipe", &S::recipe,
      Setting{.words = run_recipes(),
              .help = "Every GEMM in FP8 by this recipe ([recipes.md](recipes.md)); `bf16`: none. "
                      "Must be given, or `plan`."});
    v("plan", &S::plan,
      Setting{.file = true, .help = "Instead of `recipe`: a precision plan's file."});
    v("required", &S::required,
      Setting{.help = "A device without FP8 is refused; otherwise the run is in BF16 there, with a "
                      "warning. Also a key at the top of a plan."});
  }
  void settle(const TomlTable& table) const;
};

struct CheckpointTable {
  int64_t every = 50;
  int keep_last = 3;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("every", &CheckpointTable::every,
      Setting{.range = RunTable::kSteps,
              .unit = "steps",
              .help = "Between checkpoints; also at step 0 and at the end."});
    v("keep_last", &CheckpointTable::keep_last,
      Setting{.range = {1, 1 << 20},
              .help = "Newest ones to keep, besides those the controller needs or does not know "
                      "yet."});
  }
};

struct ControllerTable {
  std::string url = "none";
  std::string token_file, ca_file, certificate_file, key_file;
  std::optional<OnLoss> on_loss;
  std::optional<double> grace_seconds;
  double flush_seconds = 30;
  int64_t spool_bytes_max = 64 << 20;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = ControllerTable;
    v("url", &S::url,
      Setting{.accepted = "`\"none\"`, `http://HOST:PORT` or `https://HOST:PORT`",
              .help = "Where gnomond is, like `\"http://127.0.0.1:7717\"`."});
    v("token_file", &S::token_file,
      Setting{.file = true,
              .otherwise = "the environment's",
              .help = "Who the trainer says it is ([daemon.md](daemon.md#tls)). No part of what "
                      "defines the run: this and the next three may change between its "
                      "attempts."});
    v("ca_file", &S::ca_file,
      Setting{.file = true, .otherwise = "the environment's", .help = "Whom it trusts."});
    v("certificate_file", &S::certificate_file,
      Setting{.file = true, .otherwise = "the environment's", .help = "Its own certificate."});
    v("key_file", &S::key_file,
      Setting{.file = true, .otherwise = "the environment's", .help = "The certificate's key."});
    v("on_loss", &S::on_loss,
      Setting{.words = std::span(kOnLossWords).last(3),
              .otherwise = "what the run's policy says, else `continue`",
              .help = "When the controller is away for `grace_seconds`: `continue`; `bf16` (every "
                      "GEMM until it is back); `pause`."});
    v("grace_seconds", &S::grace_seconds,
      Setting{.range = rules::kSeconds,
              .otherwise = "what the run's policy says, else 60",
              .help = "For how long it waits before that."});
    v("flush_seconds", &S::flush_seconds,
      Setting{.range = rules::kSeconds,
              .help = "How long the end waits for the controller to take the last reports."});
    v("spool_bytes_max", &S::spool_bytes_max,
      Setting{.range = {64 << 10, static_cast<double>(int64_t{1} << 40)},
              .help = "Bound of the journal of undelivered reports. Where this file's `on_loss` is "
                      "`continue` or absent (the policy's does not count here) step reports fill "
                      "three quarters of it at most."});
  }
};

struct FaultTable : Fault {
  // Gives what is absent the kind's own default, and refuses what the kind has no use for.
  void settle(const TomlTable& table);
};

struct ConfigFile {
  RunTable run;
  ModelTable model;
  DataTable data;
  EvalTable eval;
  BatchConfig batch;
  MemoryChoice memory;
  OptimizerTable optimizer;
  RanksTable ranks;
  PrecisionTable precision;
  CheckpointTable checkpoint;
  StatisticsConfig statistics;
  VerificationConfig verification;
  ControllerTable controller;
  std::vector<FaultTable> faults;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = ConfigFile;
    v("run", &S::run, Setting{});
    v("model", &S::model, Setting{});
    v("data", &S::data, Setting{});
    v("eval", &S::eval, Setting{});
    v("batch", &S::batch, Setting{});
    v("memory", &S::memory, Setting{});
    v("optimizer", &S::optimizer, Setting{});
    v("ranks", &S::ranks, Setting{});
    v("precision", &S::precision, Setting{});
    v("checkpoint", &S::checkpoint, Setting{});
    v("statistics", &S::statistics, Setting{});
    v("verification", &S::verification, Setting{});
    v("controller", &S::controller, Setting{});
    v("fault", &S::faults, Setting{});
  }
  void settle(const TomlTable& table);
};

}  // namespace gnomon
