// What is behind Engine. Private to the engine's own files.
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
#include "trainer/engine/batches.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/engine_group.h"
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

// The host's memory for checkpoints.
struct CheckpointRoom {
  std::unique_ptr<OptimizerState> optimizer;  // rank 0 of several: all of it
  std::unique_ptr<Arena> weights;             // likewise, where they are shared out
  std::unique_ptr<HostRoom> mirror;           // what was copied from a device last
};

// What one computation of a step's gradients gave on this rank.
struct GradientDigest {
  uint64_t batch = 0;               // of the sequences that it read
  std::vector<double> losses;       // by micro-batch; 0 of other ranks'
  std::vector<uint64_t> gradients;  // hashes of its own, by parameter
  std::vector<double> amaxes;       // that the scaling histories are to get from it
  uint64_t sums = 0;                // of its part of all ranks' sums
};

// The parts of an engine. What it does with them are the functions below, in files of their own.
struct EngineImpl {
  EngineImpl(EngineConfig engine_config, EngineRole engine_role, EngineRanks* engine_ranks,
             const BackendMakers* makers);

  // Throws ConfigError where this model, batch or device cannot run the plan.
  ResolvedPlan resolve(const PrecisionPlan& wanted) const;
  // The same, and where a rule does not fit the model, or moments have no room or are not the
  // optimizer's. `file` is where the plan comes from, for messages.
  ResolvedPlan check_plan(const PrecisionPlan& wanted, const std::string& file) const;
  // Moments and communication from here on; moments keep their values.
  void change_formats(const RunFormats& next);
  // How the sites run in truth where the plan says `planned`.
  const std::vector<SitePrecision>& in_truth(const std::vector<SitePrecision>& planned,
                                             int64_t at) {
    return faults.precisions(planned, at, faulty_sites);
  }
  void read_batch(int64_t at, int64_t micro_batch) {
    batches.read(at, micro_batch, faults, mode.order_seed);
  }
  // The micro-batches of a step that this rank computes.
  int64_t first_micro_batch() const { return micro_batches() * group.rank(); }
  int64_t micro_batches() const { return config.batch.accumulation / group.size(); }
  std::span<const float> own_gradients() const {
    return optimizer->shard().of(std::span<const float>(model->gradients()));
  }
  WorkingWeights& working() const { return model->working(); }
  Memory& memory() const { return backend->memory(); }
  int64_t weight_bytes() const {  // of all
    return model->layout().elements() * (config.compute == Compute::kFp32 ? 4 : 2);
  }
  // Waits for the other ranks, which all have an engine now.
  void connect();
  // Their owners have written them to WorkingWeights::updated().
  void share_weights();
  // Adds up the ranks' parts where they share the weights.
  uint64_t weights_hash() const;
  // A rank that computed something else is found at the step where it did, as far as all have the
  // same weights. `hash` is that of all.
  void check_weights(uint64_t hash) const;
  template <class E>
  void make_model(std::unique_ptr<BackendOf<E>> typed);

  EngineGroup group;
  Collectives& collectives;  // the group's
  EngineConfig config;
  Fingerprint fingerprint;  // of all ranks
  EngineMode mode;
  FaultView faults;
  Batches batches;
  ScalingState scaling;
  RepeatKeys repeat_keys;
  std::unique_ptr<BackendBase> backend;
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<Optimizer> optimizer;
  Partition parts;  // of masters and moments among the ranks
  std::unique_ptr<Wires> wires;
  CheckpointRoom room;
  std::vector<ArenaSize> arenas;
  std::unique_ptr<EngineSnapshot> kept_state;
  bool has_kept = false;

  bool ready = false;  // initialize() or load() was called
  int64_t step = 0;
  uint64_t batch_hash = 0;     // of the sequences that all ranks read in this step
  std::vector<double> losses;  // by micro-batch, or by part of the held-out batch
  PrecisionPlan plan;
  std::vector<SitePrecision> sites;         // as the plan says
  RunFormats formats;                       // the plan's, which the optimizer's state has
  std::vector<SitePrecision> faulty_sites;  // room for in_truth()
  std::set<const Fault*> flipped;           // bit flips that have struck: each does so once
};

// ---- engine_gradients.cc ----
// Loss, gradients and observed amaxes of step `at`, of all ranks; changes nothing else, and may be
// called again. `digest` may be nullptr.
void compute_gradients(EngineImpl& self, int64_t at, const std::vector<SitePrecision>& precisions,
                       StatisticsCollector* collector, GradientDigest* digest);
// The same, twice or three times (Engine::train_step); says in `result` what differed.
void compute_gradients_twice(EngineImpl& self, int64_t at,
                             const std::vector<SitePrecision>& precisions,
                             StatisticsCollector* collector, StepResult& result);
// Sums up the casts of the last compute_gradients(). All ranks call it.
std::optional<CastSummary> summarize_casts(EngineImpl& self);

// ---- engine_evaluation.cc: Engine::inspect() and evaluate() ----
double inspect_step(EngineImpl& self, int64_t at, StatisticsCollector& collector);
double evaluate_heldout(EngineImpl& self, const std::vector<SitePrecision>& planned);
// ---- engine_scores.cc ----
std::vector<SiteScoreRow> score_sites(EngineImpl& self, const PrecisionPlan& plan, int64_t at);

// ---- engine_faults.cc: what faults do to gradients, weights and moments ----
void flip_gradient(EngineImpl& self, int64_t at);
void strike_weights(EngineImpl& self);
void spoil_second_moments(EngineImpl& self, int64_t at);
void spoil_gradients(EngineImpl& self, int64_t at);
// What optimizer.safetensors has of step `at` under these faults besides OptimizerState's; with
// data where the model has them.
std::vector<TensorView> stale_weights(const EngineImpl& self, const FaultView& of, int64_t at);
void load_stale_weights(EngineImpl& self, const SafetensorsFile& file, int64_t at);
// Throws ConfigError for faults that cannot strike where weights are shared out.
void check_faults_of_shards(const EngineConfig& config);

// ---- engine_state.cc: checkpoints ----
// Takes the memory that rank 0 of several needs for one.
void allocate_checkpoint_room(EngineImpl& self);
// Where the tensors lie: without content but on rank 0.
CheckpointContent content_in_place(EngineImpl& self);
// Replaces views into a device's memory by copies of what is there now.
void bring_to_host(EngineImpl& self, CheckpointContent& content);
// Reads and checks everything; what is returned then changes the state and does not fail.
std::function<void()> read_checkpoint(EngineImpl& self, const std::filesystem::path& checkpoint,
                                      bool with_plan);

// ---- engine_snapshot.cc ----
std::unique_ptr<EngineSnapshot> make_snapshot_room(const EngineImpl& self);
void take_snapshot(EngineImpl& self);
void restore_snapshot(EngineImpl& self);

// The checks of EngineConfig that need neither data nor memory. Throws ConfigError.
void check_engine_config(const EngineConfig& config);

}  // namespace gnomon
