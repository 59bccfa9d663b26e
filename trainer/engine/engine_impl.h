// What is behind Engine; shared by engine.cc (steps) and engine_state.cc (checkpoints).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "storage/safetensors.h"
#include "storage/token_shards.h"
#include "trainer/engine/data_order.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/engine_ranks.h"
#include "trainer/engine/model.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/repeat_keys.h"
#include "trainer/engine/scaling.h"

namespace gnomon {

// What a plan says of the whole run: RunPrecision in the kernels' terms.
struct RunFormats {
  MomentFormats moments;
  WireFormat gradients, weights;
};

// A plan as the engine runs it: its words are read once, by Engine::Impl::resolve.
struct ResolvedPlan {
  std::vector<SitePrecision> sites;  // by number
  RunFormats formats;
};

// What snapshot() keeps. Scaling histories and stale weights take the little they need when they
// are copied.
struct EngineSnapshot {
  EngineSnapshot(int64_t state_bytes, int64_t weight_bytes, int sites);

  Arena arena{"state kept while verifying"};  // the host's
  std::span<std::byte> masters_and_moments, weights;
  ScalingState scaling;
  EngineMode mode;
  int64_t step = 0;
  int64_t updates = 0;
  PrecisionPlan plan;
  std::vector<SitePrecision> sites;
  RunFormats formats;
  std::set<const Fault*> flipped;
};

// What one computation of a step's gradients gave on this rank.
struct GradientDigest {
  uint64_t batch = 0;               // of the sequences that it read
  std::vector<double> losses;       // by micro-batch; 0 of other ranks'
  std::vector<uint64_t> gradients;  // hashes of its own, by parameter
  std::vector<double> amaxes;       // that the scaling histories are to get from it
  uint64_t sums = 0;                // of its part of all ranks' sums
};

struct Engine::Impl {
  struct Analysis;  // engine_scores.cc

  Impl(EngineConfig engine_config, EngineRole engine_role, EngineRanks* engine_ranks,
       const BackendMakers* makers);

  // Throws ConfigError where this model, batch or device cannot run the plan.
  ResolvedPlan resolve(const PrecisionPlan& wanted) const;
  // The same, and where a rule does not fit the model, or moments have no room or are not the
  // optimizer's. `file` is where the plan comes from, for messages.
  ResolvedPlan check_plan(const PrecisionPlan& wanted, const std::string& file) const;
  // Moments and communication from here on; moments keep their values.
  void change_formats(const RunFormats& next);
  void read_batch(int64_t step, int64_t micro_batch);
  // How the sites run in truth where the plan says `planned`.
  const std::vector<SitePrecision>& in_truth(const std::vector<SitePrecision>& planned,
                                             int64_t at) {
    return faults.precisions(planned, at, faulty_sites);
  }
  // Loss, gradients and observed amaxes of step `at`, of all ranks; changes nothing else, and may
  // be called again. `digest` may be nullptr.
  void compute_gradients(int64_t at, const std::vector<SitePrecision>& precisions,
                         StatisticsCollector* collector, GradientDigest* digest);
  // The same, twice or three times (Engine::train_step); says in `result` what differed.
  void compute_gradients_twice(int64_t at, const std::vector<SitePrecision>& precisions,
                               StatisticsCollector* collector, StepResult& result);
  GradientDigest digest_gradients();
  // Sums up the casts of the last compute_gradients(). All ranks call it.
  std::optional<CastSummary> summarize_casts();
  // The texts of the ranks that have one, each with its rank, host and device.
  std::vector<std::string> texts_of_ranks(const std::string& own);
  std::span<const float> own_gradients() const {
    return optimizer->shard().of(std::span<const float>(model->gradients()));
  }
  void flip_gradient(int64_t at);
  void strike_weights();
  void strike_weight(const Fault& fault);
  void spoil_second_moments(int64_t at);
  void spoil_gradients(int64_t at);
  // What optimizer.safetensors has of step `at` under these faults besides OptimizerState's; with
  // data where the model has them.
  std::vector<TensorView> stale_weights(const FaultView& of, int64_t at);
  void load_stale_weights(const SafetensorsFile& file, int64_t at);
  void bring_to_host(CheckpointContent& content);
  WorkingWeights& working() const { return model->working(); }
  // Adds up the ranks' parts where they share the weights.
  uint64_t weights_hash();
  Memory& memory() const { return backend->memory(); }
  template <class E>
  void make_model(std::unique_ptr<BackendOf<E>> typed);
  void send_call(EngineCall call, std::string argument = {}, bool flag = false);
  // Ends the job with the exception that is being handled, which this rank alone has; throws it
  // again where there are no other ranks.
  [[noreturn]] void fail_alone(const std::exception& error) const;
  // The micro-batches of a step that this rank computes.
  int64_t first_micro_batch() const { return micro_batches() * collectives.rank(); }
  int64_t micro_batches() const { return config.batch.accumulation / collectives.size(); }
  // The tokens of an evaluation's last batch; 0 where all batches are whole.
  int64_t last_evaluated_tokens() const;
  void connect();
  void sum_over_ranks();
  // Modulo 2⁶⁴.
  uint64_t sum_over_ranks(uint64_t value);
  void sum_over_ranks(std::span<CastCounts> casts);
  void share_weights();
  void check_weights(uint64_t hash);
  std::string state_json(uint64_t hash) const;
  int64_t weight_bytes() const {  // of all
    return model->layout().elements() * (config.compute == Compute::kFp32 ? 4 : 2);
  }
  void allocate_gathered_weights();
  // All working weights, of rank 0; elsewhere none where they are shared out.
  WeightSpan weights_for_checkpoint();
  static std::function<void()> read_checkpoint(Impl& self, const std::filesystem::path& checkpoint,
                                               bool with_plan);

  std::unique_ptr<Collectives> single;  // where there are no other ranks
  EngineRanks alone;
  EngineRanks* ranks;
  Collectives& collectives;
  int64_t number = 0;  // of this engine among those of the ranks

  EngineConfig config;
  Fingerprint fingerprint;  // of all ranks
  EngineMode mode;
  FaultView faults;
  Dataset data;
  DataOrder order;
  ScalingState scaling;
  RepeatKeys repeat_keys;
  std::unique_ptr<BackendBase> backend;
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<Optimizer> optimizer;
  Partition parts;  // of masters and moments among the ranks
  std::unique_ptr<Wires> wires;
  std::unique_ptr<OptimizerState> gathered;  // rank 0 of several, for checkpoints
  std::unique_ptr<Arena> gathered_weights;   // likewise, of weights that are shared out
  uint64_t batch_hash = 0;                   // of the sequences read in this step, their sum
  std::vector<double> losses;                // by micro-batch, or by part of the held-out batch
  std::vector<ArenaSize> arenas;

  std::unique_ptr<HostRoom> mirror;  // what checkpoint() gave last, of a device's memory

  std::unique_ptr<EngineSnapshot> kept_state;
  bool has_kept = false;

  bool ready = false;  // initialize() or load() was called
  int64_t step = 0;
  PrecisionPlan plan;
  std::vector<SitePrecision> sites;         // as the plan says
  RunFormats formats;                       // the plan's, which the optimizer's state has
  std::vector<SitePrecision> faulty_sites;  // room for in_truth()
  std::set<const Fault*> flipped;           // bit flips that have struck: each does so once
  std::vector<int32_t> sequence;            // T + 1 tokens
  std::vector<int32_t> tokens, targets;
  std::vector<int32_t> heldout_tokens, heldout_targets;
};

// Throws ConfigError for faults that cannot strike where weights are shared out.
void check_faults_of_shards(const EngineConfig& config);

// The checks of EngineConfig that need neither data nor memory. Throws ConfigError.
void check_engine_config(const EngineConfig& config);

}  // namespace gnomon
