// The training engine: model, precision plan, optimizer and data order behind one object that is a
// pure function of its state. The trainer runs it forward; the verifier loads a checkpoint into it
// and replays. The same plan, data, seed and thread count give the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/devices.h"
#include "kernels/optimizers.h"
#include "kernels/tensor.h"
#include "protocol/precision_plan.h"
#include "protocol/records.h"
#include "storage/checkpoint_store.h"
#include "trainer/engine/fault_view.h"
#include "trainer/engine/memory_choice.h"
#include "trainer/engine/model_config.h"

namespace gnomon {

inline constexpr double kRunStepsMax = int64_t{1} << 40;
// In the order of Device.
inline constexpr std::array<std::string_view, 2> kDevices = {"cpu", "cuda"};

struct BatchConfig {
  int sequences = 8;     // per micro-batch
  int tokens = 256;      // per sequence
  int accumulation = 1;  // micro-batches per step
  int64_t tokens_per_step() const { return int64_t{1} * sequences * tokens * accumulation; }

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = BatchConfig;
    v("sequences", &S::sequences,
      Setting{.range = {1, 1 << 16}, .help = "Sequences in a micro-batch."});
    v("tokens", &S::tokens,
      Setting{.range = {1, 1 << 20},
              .accepted = "1 … `model.context`",
              .help = "Tokens in a sequence."});
    v("accumulation", &S::accumulation,
      Setting{.range = {1, 1 << 16}, .help = "Micro-batches in a step."});
  }
  bool operator==(const BatchConfig&) const = default;
};

struct OptimizerConfig {
  double learning_rate = 1e-3;  // peak
  double min_ratio = 0.1;       // of the peak, at the end of the cosine
  int64_t warmup_steps = 50;
  int64_t total_steps = 1000;  // the cosine's end
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // not on norms, biases
  double clip = 1.0;          // global gradient norm; 0 = off
  OptimizerKind name = OptimizerKind::kAdamw;
  double at(int64_t step) const;  // learning rate of step 1, 2, ...

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = OptimizerConfig;
    v("name", &S::name,
      Setting{.words = kOptimizerNames, .help = "See [optimizers](#optimizers). Fixed for a run."});
    v("learning_rate", &S::learning_rate, Setting{.range = {0, 1e3}, .help = "Peak."});
    v("min_ratio", &S::min_ratio,
      Setting{.range = {0, 1}, .help = "End of the cosine, as a share of the peak."});
    v("warmup_steps", &S::warmup_steps,
      Setting{.range = {0, kRunStepsMax},
              .otherwise = "at most `total_steps`",
              .help = "Linear warm-up."});
    v("total_steps", &S::total_steps,
      Setting{.range = {1, kRunStepsMax},
              .otherwise = "`run.steps`",
              .help = "End of the cosine; `--steps` does not move it."});
    v("beta1", &S::beta1,
      Setting{.range = {0, 0.999999}, .otherwise = "by optimizer", .help = "β₁."});
    v("beta2", &S::beta2,
      Setting{.range = {0, 0.999999999}, .otherwise = "by optimizer", .help = "β₂."});
    v("eps", &S::eps, Setting{.range = {1e-30, 1}, .help = "AdamW's ε."});
    v("weight_decay", &S::weight_decay,
      Setting{.range = {0, 100},
              .help = "Multiplied by the learning rate; not for norms and biases."});
    v("clip", &S::clip,
      Setting{.range = {0, 1e30}, .help = "Largest global gradient norm; 0: off."});
  }
  bool operator==(const OptimizerConfig&) const = default;
};

// What weights and activations are, and what GEMMs run in where no plan says FP8.
enum class Compute { kBf16, kFp32 };
inline constexpr std::array<std::string_view, 2> kComputes = {"bf16", "fp32"};
std::string compute_name(Compute compute);
// Throws ConfigError naming the accepted ones.
Compute compute_from_name(const std::string& name, const std::string& file);

// What the ranks of a run share out. Masters and moments always: each rank owns a part of all
// elements. With kWeights working weights too: each keeps a part of every layer's, which come
// together when a pass needs them (ZeRO-3). Bits do not depend on it.
enum class Sharding { kOptimizer, kWeights };
inline constexpr std::array<std::string_view, 2> kShardings = {"optimizer", "weights"};
std::string sharding_name(Sharding sharding);

struct EngineConfig {
  ModelConfig model;
  // A directory as transformers saves it that the weights of step 0 are taken from (hf_import.h);
  // its shape must be `model`. Empty: drawn from the seed.
  std::string from;
  Compute compute = Compute::kBf16;  // with kFp32 no plan may ask for FP8
  BatchConfig batch;
  OptimizerConfig optimizer;
  std::string data;  // dataset directory
  int64_t seed = 1;
  Device device = Device::kCpu;
  int threads = 1;
  MemoryChoice memory;
  int heldout_sequences = 32;  // fixed held-out batch: the first ones of the held-out split
  std::vector<Fault> faults;
  Sharding shard = Sharding::kOptimizer;

  static constexpr Range kSeed = {0, 9.3e18};
  static constexpr Range kThreads = {1, 1024};
  static constexpr Range kHeldoutSequences = {1, 1 << 20};

  // The trainer_state.json part; written into checkpoints, so that a checkpoint alone can be
  // replayed.
  std::string to_json() const;
  static EngineConfig from_json(const std::string& json, const std::string& file);
};

// What the casts of a step did to its tensors, which are a role at a site each. Shares are combined
// as the geometric mean of share + 1e-6: one of thousands of tensors that goes from nothing to a
// half then raises it by a factor, where it would vanish in a mean of large tensors, and each
// tensor has the same say.
struct CastSummary {
  double saturated = 0;  // CastCounts::saturated of `values`
  double flushed = 0;    // CastCounts::flushed of `values`
  double peak = 0;       // the largest of all: 1 = the scales fit, 64 = one is 2⁶ too large
  bool operator==(const CastSummary&) const = default;
};

struct StepResult {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  double seconds = 0;
  uint64_t weights_hash = 0;
  uint64_t batch_hash = 0;  // of the sequences it took, whatever their order
  bool finite = true;       // loss and grad_norm
  // The casts of all ranks. Absent where nothing was cast, or the backend does not count.
  std::optional<CastSummary> casts = {};
  // Masters or moments were not what the update before had written when this step's update read
  // them: memory did not keep them, or something wrote where it must not.
  bool state_changed = false;
  // Says where two computations of the step differ: ranks, hosts and tensors, and what a third one
  // gave. Empty: they agree, or it was computed once.
  std::string mismatch;
  // False: all three differ. The step was not made, and the rest of this says nothing.
  bool committed = true;
};

// How an engine computes, besides its plan: what makes an arm of a replay.
struct EngineMode {
  EngineRole role = EngineRole::kLive;  // decides which faults strike (fault_view.h)
  // Products of FP8 values are made as BF16 ones are, not by the FP8 kernel. On the CPU, whose FP8
  // kernel is a BF16 product of these values, a healthy run's bits are the same then, unless its
  // plan adds up as Hopper does.
  bool fakequant = false;
  // Other than 0: the sequences of a step in another order, drawn from this number and the step, so
  // that the sums over them are rounded in another order.
  int64_t order_seed = 0;
  bool operator==(const EngineMode&) const = default;
};

struct EngineImpl;
struct EngineRanks;
class StatisticsCollector;
struct StatisticsConfig;

class Engine {
 public:
  // Takes all memory. `config.data` is opened and checked against the vocabulary. Throws
  // ConfigError, FormatError, Error when the device cannot be used or has too little memory.
  // `backends` are those of config.device if none are given.
  // With `ranks` (engine_ranks.h), which must outlive it, the engine computes with all of them:
  // every rank takes an equal share of a step's micro-batches, owns a part of masters and moments
  // (ZeRO-1), and has all the working weights, or a part of those too (EngineConfig::shard).
  explicit Engine(EngineConfig config, EngineRole role = EngineRole::kLive,
                  EngineRanks* ranks = nullptr, const BackendMakers* backends = nullptr);
  ~Engine();

  const EngineConfig& config() const;
  const std::vector<ArenaSize>& arenas() const;
  Fingerprint fingerprint() const;
  // Why no plan with FP8 can run on this device; empty where it can (BackendBase::lacks_fp8).
  std::string lacks_fp8() const;

  // Step 0: random weights from the seed, empty optimizer, empty scaling state. Matrices are normal
  // with the model's init_std, divided by √(2·layers) for o_proj and down_proj, which add to the
  // residual; norms 1, biases 0.
  void initialize();
  // From a checkpoint directory, which is verified first. With `with_plan` the checkpoint's plan
  // becomes the engine's; otherwise the engine's stays. Throws CheckpointError, FormatError (a
  // tensor missing, extra or misshapen; weights that are not those of the state), ConfigError
  // (another model shape or other data); then the engine is as it was.
  void load(const std::filesystem::path& checkpoint, bool with_plan = true);
  // Tensors and JSON of a checkpoint of the present state. Views into the engine's memory: valid
  // until the next step. Of several ranks only rank 0 gets content; its memory for it, all masters
  // and moments, and all weights where they are shared out, is taken with the engine, unless that
  // is for replays.
  CheckpointContent checkpoint() const;

  // The same, where it lies: the tensors' data may be in memory(), for copies out of it. They keep
  // what they are until the next update, which comes after the copies that were started before
  // (Memory::settle).
  CheckpointContent checkpoint_in_place() const;
  Memory& memory() const;

  // For replays on the run's own engine, between two of its steps. allocate_snapshot_memory(),
  // once, takes room for a copy of all that later steps depend on; snapshot() makes the copy, and
  // restore() brings it back bit for bit, whatever was loaded, changed and trained in between, as
  // often as it is called. Of several ranks each keeps its own part.
  void allocate_snapshot_memory();
  void snapshot();
  void restore();

  // Runs the passes of a step and of an evaluation once on tokens of no meaning and forgets what
  // they gave, so that the backend compiles its kernels and takes their scratch memory now: later
  // steps and evaluations take none. Changes no state. After initialize() or load().
  void prepare();

  int64_t step() const;  // of the last update done; 0 at the start
  const PrecisionPlan& plan() const;
  // Takes effect with the next step. Scaling state of sites that stay in FP8 with the same recipe
  // is kept; moments are decoded and stored in the plan's form at once, with bits that depend on
  // them, seed and step alone. Throws ConfigError for sites that do not exist, for FP8 where
  // compute is kFp32, and for wider moments than there is room for (MemoryChoice::moments); then
  // the engine is as it was.
  void set_plan(const PrecisionPlan& plan);

  // Throws what set_plan() would.
  void check_plan(const PrecisionPlan& plan) const;

  const EngineMode& mode() const;
  // Takes effect with the next step or evaluation. At first the role given and otherwise nothing.
  void set_mode(const EngineMode& mode);
  // Multiplies every master weight by 1 + scale·N(0, 1), drawn from (seed, element), and rounds the
  // working weights anew: another run that chance alone tells from this one. After initialize() or
  // load().
  void perturb(int64_t seed, double scale);

  // One optimizer step. A step whose loss or gradient norm is not finite is reported so and changes
  // no weight; it counts as a step, and the next one has other data.
  // A collector, from statistics(), gathers while the first micro-batch runs.
  // With `twice` all ranks compute loss and gradients twice before a weight changes, and a third
  // time where a bit differs: what two computations agree on is used, and the step has the bits
  // that it has without. Where all three differ the engine stays at the step before.
  StepResult train_step(StatisticsCollector* collector = nullptr, bool twice = false);
  // Forward and backward on the first micro-batch of step `step` under the engine's plan, for what
  // the collector gathers; changes no state. Returns the mean loss.
  // With several ranks, rank 0 alone computes; the others call accompany_inspection().
  double inspect(int64_t step, StatisticsCollector& collector);
  void accompany_inspection();
  // Gathers on this engine's tensors. Throws ConfigError (check_statistics), and for compute fp32,
  // which rounds nothing.
  std::unique_ptr<StatisticsCollector> statistics(const StatisticsConfig& statistics,
                                                  const std::string& file) const;
  // What each site that `plan` runs in FP8 costs (site_scores.h), in the model's order: on the
  // fixed held-out batch, and for the next update, of the moments as they are. Faults in the
  // numerics act as in step `at`, which is after step(), and that step's batch is taken. Changes no
  // state at all. Takes 8 bytes for each parameter, 4 for each weight in FP8, and 2 for each number
  // that such a GEMM reads of a micro-batch; gives them back. Throws ConfigError as set_plan(),
  // Error with several ranks.
  std::vector<SiteScoreRow> scores(const PrecisionPlan& plan, int64_t at);
  // Mean loss (nats per token) on the fixed held-out batch under `plan`; changes no state at all.
  // Faults in the numerics act as in step step().
  double evaluate(const PrecisionPlan& plan);
  // Loss sums in nats of the last evaluation, by micro-batch, and how many tokens each had: what an
  // evaluation under other weights is paired with.
  struct Part {
    double loss_sum = 0;
    int64_t tokens = 0;
  };
  std::vector<Part> evaluated_parts() const;
  // Tokens in that batch: heldout_sequences × tokens, less when the held-out split is shorter.
  int64_t heldout_tokens() const;
  // PlacedHash (base/hash.h) of all working weights, in a fixed order.
  uint64_t weights_hash() const;

 private:
  std::unique_ptr<EngineImpl> impl_;
};

// The engine configuration inside a checkpoint (trainer_state.json), without loading tensors.
EngineConfig read_engine_config(const std::filesystem::path& checkpoint);

}  // namespace gnomon
