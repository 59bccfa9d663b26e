// The messages that cross a process boundary, as plain structs. protocol/json.h turns them into
// JSON and back; numbers that JSON cannot write travel as the strings "NaN", "Infinity" and
// "-Infinity". 64-bit hashes are 16 hexadecimal digits. Times are seconds since the epoch (double),
// durations are seconds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/labels.h"

namespace gnomon {

// What a result's bits depend on. Bits are compared only between equal fingerprints.
struct Fingerprint {
  std::string device;     // "AMD EPYC (avx512_bf16)", "NVIDIA H200"
  std::string backend;    // "cpu", "cuda"
  std::string libraries;  // "oneDNN 2.6.3"
  std::string build;      // our own version and revision
  int world_size = 1;
  int threads = 1;
  bool operator==(const Fingerprint&) const = default;
};

// A fault switched on by configuration, told to the controller so that the ledger knows the truth.
struct InjectedFault {
  std::string kind;
  std::string site;
  int64_t start_step = 0;
  int64_t end_step = 0;  // exclusive; 0 = never ends
  std::string description;
};

// ---- trainer → controller
// -------------------------------------------------------------------------------

// POST /v1/runs. Idempotent by (name, job_id).
struct RunRegistration {
  std::string name;
  std::string job_id;
  Fingerprint fingerprint;
  std::string base_plan;  // TOML: the plan the run wants to be in (what "return to FP8" returns to)
  std::vector<std::string> sites;  // GEMM sites in model order
  int layers = 0;
  int64_t parameters = 0;
  int64_t total_steps = 0;
  int64_t tokens_per_step = 0;
  int64_t checkpoint_every = 0;  // steps
  int64_t seed = 0;
  std::string checkpoint_root;
  std::vector<InjectedFault> faults;
  // What a trainer already knows when it registers again at a controller whose ledger is new:
  // directives and plans are numbered from there on.
  int64_t last_directive = 0;
  int64_t newest_plan_version = 0;
  bool trainer_replays = false;  // the trainer asks for leases itself (inline verification)
  // It asks for those alone that only the trainer can do: where two sources contradict each other,
  // or one is alone.
  bool trainer_confirms = false;
};

struct RunRegistered {
  std::string run;   // "run-1"; the id used in URLs
  std::string mode;  // observe, advise, enforce
  // What the run's policy wants of a trainer whose controller is away, where its own file does not
  // say: continue, bf16, pause; and after how long. Empty: an older controller.
  std::string on_loss = {};
  double grace_seconds = 60;
};

// POST /v1/runs/{run}/attempts. A rollback or a restart begins the next attempt. Idempotent by
// number.
struct AttemptStart {
  int64_t attempt = 1;    // 1, 2, ...
  int64_t base_step = 0;  // the first step of this attempt is base_step + 1
  std::string cause;      // "start", "restart", "rollback"
  int64_t plan_version = 0;
  double time = 0;
  std::optional<Fingerprint> fingerprint = {};  // of this attempt; absent = the registration's
  std::string host = {};                        // where rank 0 runs; empty = not said
};

// Why a GPU runs below its clock, as NVML names them, in the order of its bits. More than one may
// hold.
inline constexpr std::array kThrottleReasons = {
    "idle",       "applications_clocks", "sw_power_cap",        "hw_slowdown",
    "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"};

// What the GPU of rank 0 said of itself. What a device does not tell is absent, which is not 0.
struct DeviceHealth {
  std::string device;     // its PCI bus id, "0000:01:00.0"
  std::string name = {};  // "NVIDIA H200"
  double time = 0;        // when it was asked
  // Why it could not be asked, then with no number below; empty = it answered.
  std::string error = {};
  std::optional<double> sm_clock_mhz = {};
  std::optional<double> memory_clock_mhz = {};
  std::optional<double> power_watts = {};
  std::optional<double> power_limit_watts = {};
  std::optional<double> temperature_celsius = {};
  std::optional<int64_t> memory_used_bytes = {};
  std::optional<int64_t> memory_total_bytes = {};
  std::optional<double> utilization_percent = {};
  // Volatile counts: of errors since the driver was loaded.
  std::optional<int64_t> ecc_corrected = {};
  std::optional<int64_t> ecc_uncorrected = {};
  std::optional<std::vector<std::string>> throttle_reasons = {};  // some of kThrottleReasons
  // Memory rows to be replaced at the next reset; a replacement that failed.
  std::optional<bool> remapped_rows_pending = {};
  std::optional<bool> remapped_rows_failure = {};
};

// One training step. Identity is (run, attempt, step); a repeat with another loss, grad_norm,
// weights_hash or plan_version is refused with 409.
struct StepReport {
  int64_t attempt = 1;
  int64_t step = 0;  // 1 is the first update
  int64_t plan_version = 0;
  double loss = 0;       // mean over the step's tokens, nats per token, before the update
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;
  double step_seconds = 0;
  std::string weights_hash;  // of all BF16 weights after the update
  double time = 0;
  std::string batch_hash = {};  // of the step's token ids in their order; empty = not said
  // Where a GPU is watched: its newest answer, when there is one that no step before has carried.
  // No part of the step itself.
  std::optional<DeviceHealth> device_health = {};
};

// POST /v1/runs/{run}/steps
struct StepBatch {
  std::vector<StepReport> steps;
};

// Answer to steps and checkpoints: what the trainer may not delete, and the newest directive there
// is.
struct ReportAck {
  int64_t accepted = 0;  // new facts
  int64_t repeated = 0;  // known already, with the same values
  std::vector<std::string>
      protected_checkpoints;  // URIs that open windows or the last verified state need
  int64_t last_directive = 0;
};

// POST /v1/runs/{run}/checkpoints: a checkpoint is complete on disk.
struct CheckpointReport {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string uri;  // directory
  int64_t plan_version = 0;
  int64_t bytes = 0;
  std::string manifest_hash;  // of manifest.json
  std::string weights_hash;   // as in StepReport after `step`
  double time = 0;
};

inline constexpr std::array<std::string_view, 3> kTrainerNoticeKinds = {
    "checkpoint_failed", "reports_dropped", "plan_without_controller"};
// gnomond's own word: on what the trainer reported of its GPU, and on replays that wait.
inline constexpr std::string_view kEccErrors = "ecc_errors";
inline constexpr std::string_view kNoVerifierFits = "no_verifier_fits";
inline constexpr std::array<std::string_view, 2> kOwnNoticeKinds = {kEccErrors, kNoVerifierFits};

// POST /v1/runs/{run}/notices: something that people and the ledger should know and no decision
// rests on. A trainer's kinds are kTrainerNoticeKinds.
struct TrainerNotice {
  int64_t attempt = 1;
  int64_t step = 0;  // newest finished step then
  std::string kind;
  std::string text;          // a sentence for people
  std::string plan;          // plan_without_controller: TOML
  int64_t plan_version = 0;  // plan_without_controller: what step reports will carry
  double time = 0;
};

// POST /v1/runs/{run}/finished: the run ended by itself.
struct RunFinished {
  std::string outcome;  // "completed", "stopped", "failed"
  int64_t step = 0;
  double final_loss = 0;     // held-out loss in BF16 at the end
  double train_seconds = 0;  // wall time in steps
  double time = 0;
};

// ---- directives: controller → trainer
// --------------------------------------------------------------------

// Kinds: set_plan, rollback, checkpoint_now, pause, resume, stop.
struct Directive {
  int64_t number = 0;  // per run, 1, 2, ...
  std::string kind;
  std::string plan;  // set_plan, rollback: TOML; empty = keep the checkpoint's plan
  int64_t plan_version = 0;
  int64_t to_step = 0;         // rollback: checkpoint's step
  std::string checkpoint_uri;  // rollback
  std::string reason;          // a sentence for people
  std::string state;           // pending, delivered, acknowledged, applied, rejected, expired
};

struct DirectiveList {
  std::vector<Directive> directives;
};

// POST /v1/runs/{run}/directives/{n}/ack
struct DirectiveAck {
  std::string state;  // acknowledged, applied, rejected
  int64_t attempt = 0;
  int64_t step = 0;    // applied: the last step before it took effect
  std::string reason;  // rejected
  double time = 0;
};

// ---- tensor statistics
// --------------------------------------------------------------------------------

// What StatisticsRow may say of a tensor, and of what rounding does to it. kernels/statistics.h and
// docs/statistics.md define each; the names are those in JSON, the ledger and the command line.
enum class StatisticsNumber {
  kNans,
  kInfinities,
  kZeros,
  kMin,
  kMax,
  kAmax,
  kAmin,
  kMean,
  kStd,
  kL1,
  kL2,
  kDynamicRange,
  kKurtosis,
  kTokenKurtosisMean,
  kTokenKurtosisMax,
  kAmaxOverWindow,
  kGateCosineMean,
  kGateCosineMax,
  kTiles,
  kUnderflow,
  kUnderflowPercent,
  kSaturation,
  kOverflow,
  kSubnormal,
  kTopCode,
  kTopCodeTileMax,
  kTilesInTopCode,
  kMse,
  kRelativeError,
  kCosine,
  kSqnrDb,
  kScaleMin,
  kScaleMax,
  kTileRangeMean,
  kTileRangeMax,
  kScaleError,
};
inline constexpr std::array kStatisticsNames = {
    "nans",
    "infinities",
    "zeros",
    "min",
    "max",
    "amax",
    "amin",
    "mean",
    "std",
    "l1",
    "l2",
    "dynamic_range",
    "kurtosis",
    "token_kurtosis_mean",
    "token_kurtosis_max",
    "amax_over_window",
    "gate_cosine_mean",
    "gate_cosine_max",
    "tiles",
    "underflow",
    "underflow_percent",
    "saturation",
    "overflow",
    "subnormal",
    "top_code",
    "top_code_tile_max",
    "tiles_in_top_code",
    "mse",
    "relative_error",
    "cosine",
    "sqnr_db",
    "scale_min",
    "scale_max",
    "tile_range_mean",
    "tile_range_max",
    "scale_error",
};

// Of a tensor (gemm and recipe empty), or of rounding it for one GEMM.
struct StatisticsRow {
  std::string site;
  std::string tensor;   // input, weight, gradient, output
  std::string gemm;     // fprop, dgrad, wgrad
  std::string recipe;   // as in plans; a "what if" may have formats behind it
  bool in_use = false;  // the GEMM ran so; otherwise what if
  int64_t elements = 0;
  std::array<std::optional<double>, kStatisticsNames.size()> numbers = {};
  // Nonzero elements by binary exponent, from histogram_lowest on; those lower still.
  int histogram_lowest = 0;
  int64_t histogram_below = 0;
  std::vector<int64_t> histogram = {};

  std::optional<double> number(StatisticsNumber which) const {
    return numbers[static_cast<size_t>(which)];
  }
};

// POST /v1/runs/{run}/statistics: some of the rows of one step. A row is known by (attempt, step,
// site, tensor, gemm, recipe, in_use); the first one stays.
struct StatisticsReport {
  int64_t attempt = 1;
  int64_t step = 0;
  int64_t plan_version = 0;
  std::vector<StatisticsRow> rows;
  double time = 0;
};

// ---- overrides: operator → controller
// ------------------------------------------------------------------------

// POST /v1/runs/{run}/overrides. Kinds: pause, resume, stop, checkpoint_now (one directive, no
// expiry), set_plan (the run stays in `plan` until the expiry), silence (windows are measured, no
// action follows), mode (the run's mode is `mode`).
struct OverrideRequest {
  std::string kind;
  std::string plan;            // set_plan: TOML
  std::string mode;            // mode: observe, advise, enforce
  std::string owner;           // who asks; required
  std::string reason;          // why; required
  double expires_seconds = 0;  // from now; required above 0 for set_plan, silence, mode
};

struct OverrideAccepted {
  int64_t decision = 0;   // where it stands in the decision log
  int64_t directive = 0;  // issued at once; 0 = none
  double expires_at = 0;  // seconds since the epoch; 0 = does not expire
};

// POST /v1/runs/{run}/end: the trainer is gone for good, and the run has failed.
struct EndRequest {
  std::string owner;   // who says so; required
  std::string reason;  // why; required
};

// ---- leases: controller ↔ verifier
// -----------------------------------------------------------------------

// What the name of a trainer that asks for leases begins with, and no other verifier's.
inline constexpr const char* kTrainerPrefix = "trainer:";
inline bool is_trainer(const std::string& verifier) { return verifier.starts_with(kTrainerPrefix); }

// POST /v1/leases?wait=SECONDS. 200 with a Lease, or 204 when there is nothing to do.
struct LeaseRequest {
  std::string verifier;  // name, unique per process: "host:pid"; a trainer's "trainer:host:pid"
  Fingerprint fingerprint;
  // A trainer that replays between two steps asks for its own run's work only, and takes what only
  // the trainer can do.
  std::string run = {};
  bool on_trainer = false;
  // What its operator calls it, for a policy's [verifier] requires: "pool", "host", ... The
  // controller adds "backend" and "device" of the fingerprint. Bounds: protocol/labels.h.
  Labels labels = {};
};

// What to replay: a window in one arm.
struct ReplayTask {
  std::string run;
  int64_t replay = 0;  // id
  int64_t window = 0;  // id
  int64_t attempt = 1;
  std::string arm;      // "bf16", "same", "fakequant", "bf16-perturbed", "plan", "scores"
  std::string plan;     // TOML for arm "plan"; "fakequant", "scores": if not the checkpoint's
  std::string purpose;  // shadow, triage, attribution, probe, instrument
  std::string checkpoint_uri;
  int64_t start_step = 0;          // the checkpoint's
  int64_t steps = 0;               // K
  std::string end_checkpoint_uri;  // the run's own checkpoint at start_step + steps; may be empty
  bool evaluate_endpoints =
      false;  // also evaluate start (BF16 and the run's plan) and end checkpoint (BF16)
  // Other than 0: the arm starts from weights that this seed moves a little, so that repeated
  // replays of one arm spread as chance would spread them. The scale is relative; 0 = the default.
  int64_t perturb = 0;
  double perturb_scale = 0;
};

struct Lease {
  int64_t lease = 0;
  int64_t token = 0;  // fencing token, grows with every lease of a replay
  double ttl_seconds = 0;
  ReplayTask task;
};

// POST /v1/leases/{lease}/heartbeat; 409 when the token is stale: stop working.
struct LeaseHeartbeat {
  int64_t token = 0;
  int64_t steps_done = 0;
};

// One replayed step.
struct ReplayStep {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  std::string weights_hash;
  std::string batch_hash = {};
};

// What an analysis of a checkpoint says of one GEMM site; trainer/engine/site_scores.h has the
// formulas. Nats.
struct SiteScoreRow {
  std::string site;
  double phi = 0;      // what its FP8 costs the loss of a forward pass, first and second order
  double psi = 0;      // what its FP8 gradient costs the next update on held-out text
  double sqnr_db = 0;  // of its output in FP8
};

// POST /v1/leases/{lease}/complete. Held-out losses are means in nats per token; absent = not
// measured.
struct ReplayResult {
  int64_t token = 0;
  Fingerprint fingerprint;
  std::vector<ReplayStep> steps;  // shorter than asked for when the replay turned non-finite
  std::optional<double> start_loss_bf16;  // L16 at the checkpoint
  std::optional<double>
      start_loss_plan;  // L8 at the checkpoint: the same weights under the run's plan
  std::optional<double> run_end_loss_bf16;     // L16(w8): the run's own end checkpoint, in BF16
  std::optional<double> replay_end_loss_bf16;  // L16 at the replay's end, in BF16
  int64_t heldout_tokens = 0;
  double replay_seconds = 0;  // compute spent in steps
  double eval_seconds = 0;    // compute spent in evaluations and loading
  double time = 0;
  // Arm "fakequant": as start_loss_plan, but without the FP8 kernel.
  std::optional<double> start_loss_fakequant = {};
  // Standard error of run_end_loss_bf16 − replay_end_loss_bf16, paired over held-out sequences.
  std::optional<double> gap_error = {};
  std::vector<SiteScoreRow> scores = {};  // arm "scores"
};

// POST /v1/leases/{lease}/fail
struct LeaseFailure {
  int64_t token = 0;
  std::string reason;
  bool retryable = true;
};

// RFC 9457 application/problem+json.
struct Problem {
  std::string type = "about:blank";
  std::string title;
  int status = 500;
  std::string detail;    // what was wrong, with which value
  std::string accepted;  // extension member: what would be accepted
};

}  // namespace gnomon
