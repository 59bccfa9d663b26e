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
              .help = "With `job_id`, the run's identity at the controller."});
    v("job_id", &S::job_id,
      Setting{.check = identifier_error,
              .accepted = "letters, digits, `_`, `-`, `.`",
              .help = "`--job-id` overrides it ([slurm.md](slurm.md))."});
    v("dir", &S::dir,
      Setting{.otherwise = "`runs/NAME-JOB`",
              .accepted = "a directory",
              .help = "Directory of the run; one trainer at a time."});
    v("seed", &S::seed,
      Setting{.range = EngineConfig::kSeed, .help = "Seed of weights and data order."});
    v("steps", &S::steps, Setting{.range = kSteps, .help = "Last step."});
    v("threads", &S::threads,
      Setting{.range = EngineConfig::kThreads,
              .otherwise = "all cores",
              .help = "Bits repeat only with the same number."});
    v("device", &S::device,
      Setting{.words = kDevices,
              .help = "`cuda`: the first visible GPU, or the local rank's. Needs a driver as new "
                      "as the toolkit, a GPU that the build supports, widths in multiples of 16, "
                      "and enough memory."});
    v("watch_gpu", &S::watch_gpu,
      Setting{.check = bus_id_error,
              .otherwise = "the run's GPU",
              .accepted = "a PCI bus id, like `\"0000:01:00.0\"`",
              .help = "GPU whose [health](#the-gpus-health) is reported."});
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
              .help = "A Llama, Qwen2 or Qwen3 directory of `transformers`, in place of the shape "
                      "and random weights ([models.md](models.md))."});
    ModelConfig::describe([&](const char* key, auto member, const Setting& setting) {
      v(
          key, [member](auto& s) -> auto& { return s.shape.*member; }, setting);
    });
    v("compute", &ModelTable::compute,
      Setting{.words = kComputes, .help = "Format where the plan has BF16. `fp32` excludes FP8."});
  }
  void settle(const TomlTable& table);
};

struct DataTable {
  std::string dir;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("dir", &DataTable::dir,
      Setting{.accepted = "a directory",
              .help = "Output of `gnomon data prepare`. Give it here or as `--data`."});
  }
};

struct EvalTable {
  int sequences = 32;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("sequences", &EvalTable::sequences,
      Setting{
          .range = EngineConfig::kHeldoutSequences,
          .otherwise = "all, if fewer",
          .help =
              "Held-out sequences of `batch.tokens` for evaluations; at most the whole split."});
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
              .help = "Format of the first moment; `fp8` is E4M3 in blocks "
                      "([data_parallel.md](data_parallel.md)). Becomes the first rule of the first "
                      "plan; later plans must set it."});
    v("second_moment", &S::second_moment,
      Setting{.words = kMomentWords, .help = "Likewise; `fp8` is E5M2."});
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
      Setting{.words = kWireWords,
              .help = "Format of gradients between ranks: a scale per 128 elements or, with "
                      "`:tensor`, per tensor. A rule of the first plan, as above."});
    v("weights", &S::weights, Setting{.words = kWireWords, .help = "Likewise, for weights."});
    v("shard", &S::shard,
      Setting{.words = kShardings,
              .help = "What ranks divide: masters and moments; with `weights` also the working "
                      "weights ([data_parallel.md](data_parallel.md)). Same bits."});
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
              .help = "[Recipe](recipes.md) of every GEMM; `bf16`: no FP8. Give this or `plan`."});
    v("plan", &S::plan, Setting{.file = true, .help = "File of a [plan](recipes.md)."});
    v("required", &S::required,
      Setting{.help = "Refuse a device without FP8. Otherwise the run uses BF16 there, with a "
                      "warning. Also at the top of a plan."});
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
              .help = "Distance of checkpoints; also at step 0 and the end."});
    v("keep_last", &CheckpointTable::keep_last,
      Setting{.range = {1, 1 << 20},
              .help = "Newest checkpoints to keep, besides those that the controller needs or does "
                      "not know yet."});
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
              .help = "Address of `gnomond`."});
    v("token_file", &S::token_file,
      Setting{.file = true,
              .otherwise = "environment",
              .help = "Token ([daemon.md](daemon.md#tls)). This and the next three may change "
                      "between attempts."});
    v("ca_file", &S::ca_file,
      Setting{.file = true, .otherwise = "environment", .help = "Trusted authorities."});
    v("certificate_file", &S::certificate_file,
      Setting{.file = true, .otherwise = "environment", .help = "The trainer's certificate."});
    v("key_file", &S::key_file,
      Setting{.file = true, .otherwise = "environment", .help = "Its key."});
    v("on_loss", &S::on_loss,
      Setting{.words = std::span(kOnLossWords).last(3),
              .otherwise = "the policy's, else `continue`",
              .help = "Action after `grace_seconds` without the controller; `bf16`: no FP8 until "
                      "it is back."});
    v("grace_seconds", &S::grace_seconds,
      Setting{.range = rules::kSeconds,
              .otherwise = "the policy's, else 60",
              .help = "Wait before `on_loss` acts."});
    v("flush_seconds", &S::flush_seconds,
      Setting{.range = rules::kSeconds,
              .help = "Longest wait at the end for undelivered reports."});
    v("spool_bytes_max", &S::spool_bytes_max,
      Setting{.range = {64 << 10, static_cast<double>(int64_t{1} << 40)},
              .help = "Limit of undelivered reports. If `on_loss` here is `continue` or absent, "
                      "step reports fill at most three quarters."});
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
