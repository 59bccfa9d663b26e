// What the decision core receives (events) and what it wants done (effects). Both are plain data:
// the supervisor records every event in the ledger before it acts on the effects, so any decision
// can be replayed from the ledger.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/records/decision.h"
#include "protocol/records/directive.h"
#include "protocol/records/override.h"
#include "protocol/records/replay.h"
#include "protocol/records/run.h"
#include "protocol/records/step.h"
#include "protocol/records/window.h"

namespace gnomon::decide {

// ---- events
// ----------------------------------------------------------------------------------------------

struct RunRegisteredEvent {
  std::string name;
  std::string base_plan;           // TOML
  std::vector<std::string> sites;  // in model order
  int layers = 0;
  int64_t checkpoint_every = 0;  // steps
  int64_t total_steps = 0;
  // What the trainer has had from a controller whose ledger is lost: directives and plans are
  // numbered above these.
  int64_t last_directive = 0;
  int64_t newest_plan_version = 0;
  bool trainer_replays = false;  // the trainer takes leases itself (inline verification)
  int64_t tokens_per_step = 0;
  bool trainer_confirms = false;  // it takes those that only it can do
  Capabilities capabilities = {};

  // Events of 0.2.0 have no capabilities.
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = RunRegisteredEvent;
    constexpr Member kNeeded = {.required = true};
    v("name", &R::name, kNeeded);
    v("base_plan", &R::base_plan, kNeeded);
    v("sites", &R::sites, kNeeded);
    v("layers", &R::layers, kNeeded);
    v("checkpoint_every", &R::checkpoint_every, kNeeded);
    v("total_steps", &R::total_steps, kNeeded);
    v("last_directive", &R::last_directive, kNeeded);
    v("newest_plan_version", &R::newest_plan_version, kNeeded);
    v("trainer_replays", &R::trainer_replays, kNeeded);
    v("tokens_per_step", &R::tokens_per_step, kNeeded);
    v("trainer_confirms", &R::trainer_confirms, kNeeded);
    v("capabilities", &R::capabilities, Member{});
  }
};

inline constexpr const char* kContinued = "once more";

struct AttemptStarted {
  int64_t attempt = 1;
  int64_t base_step = 0;
  // start, restart, rollback; or kContinued: the attempt at hand, after its run was said to have
  // ended, and base_step is where it is.
  std::string cause;
  int64_t plan_version = 0;
  std::string host = {};  // where it runs; empty = not said
};

struct StepReported {
  int64_t attempt = 1;
  int64_t step = 0;
  int64_t plan_version = 0;
  double loss = 0;                  // may be NaN or infinite
  std::optional<double> grad_norm;  // may be NaN or infinite; nothing = not said
  double seconds = 0;               // of the step; 0 = not said
  std::string batch_hash = {};      // of its tokens; empty = not said
  // What casts to FP8 did (protocol/records/step.h); nothing = not said.
  std::optional<double> cast_saturated = {};
  std::optional<double> cast_flushed = {};
  std::optional<double> cast_peak = {};
  std::optional<bool> state_changed = {};  // the same

  // Events of 0.2.0 end with batch_hash or before it.
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = StepReported;
    constexpr Member kNeeded = {.required = true, .null = true};
    v("attempt", &R::attempt, kNeeded);
    v("step", &R::step, kNeeded);
    v("plan_version", &R::plan_version, kNeeded);
    v("loss", &R::loss, kNeeded);
    v("grad_norm", &R::grad_norm, kNeeded);
    v("seconds", &R::seconds, kNeeded);
    v("batch_hash", &R::batch_hash, Member{});
    v("cast_saturated", &R::cast_saturated, Member{});
    v("cast_flushed", &R::cast_flushed, Member{});
    v("cast_peak", &R::cast_peak, Member{});
    v("state_changed", &R::state_changed, Member{});
  }
};

struct CheckpointCompleted {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string uri;
  int64_t plan_version = 0;
};

// What an analysis of a checkpoint says about one GEMM site; trainer/engine/site_scores.h has the
// formulas.
struct SiteScore {
  std::string site;
  double phi = 0;      // first and second order estimate of what its FP8 costs the loss, nats
  double psi = 0;      // what its FP8 gradient costs the next update on held-out text, nats
  double sqnr_db = 0;  // of its output
};

// A step whose tokens were not those that the data's order gives: the hashes of both.
struct OtherBatch {
  int64_t step = 0;
  std::string run;
  std::string data;
};
inline constexpr size_t kOtherBatchesMax = 16;  // of one replay, the first ones

// A replay's result, joined by the supervisor with what the trainer had reported for the same
// steps.
struct ReplayFinished {
  int64_t replay = 0;
  int64_t window = 0;
  Arm arm;  // as it was ordered
  ReplayPurpose purpose;
  bool fingerprint_equal = false;  // replay's against the run's
  int64_t compared_steps = 0;      // steps whose hashes both sides have
  std::optional<int64_t>
      first_mismatch_step;         // first step whose weights hash, loss or grad norm differs
  std::vector<int64_t> steps;      // replayed steps, with
  std::vector<double> losses;      // their losses
  std::vector<double> run_losses;  // and the trainer's; NaN where it reported none or not finite
  std::optional<double> start_loss_bf16;
  std::optional<double> start_loss_plan;
  std::optional<double> run_end_loss_bf16;
  std::optional<double> replay_end_loss_bf16;
  std::string verifier = {};     // who did it
  std::string fingerprint = {};  // of its device, as a hash; empty = not known
  bool on_trainer = false;       // the trainer itself, between two steps
  std::optional<int64_t> first_other_batch_step = {};  // first step whose tokens were not the run's
  std::vector<OtherBatch> other_batches = {};          // that step and further ones
  std::string end_hash = {};  // of the weights after the last replayed step
  std::optional<double> gap_error =
      {};              // standard error of run_end − replay_end over held-out text, nats
  double seconds = 0;  // compute spent
  std::vector<SiteScore> scores = {};  // arm "scores"
  double step_seconds = 0;             // of `seconds`, those of the replayed steps
};

// A replay that no verifier could finish (after the lease's retries).
struct ReplayFailed {
  int64_t replay = 0;
  int64_t window = 0;
  Arm arm;
  std::string reason;
};

// Also accepted of a directive that has expired: "applied" is believed.
struct DirectiveChanged {
  int64_t number = 0;
  DirectiveState state;  // applied, rejected
  int64_t attempt = 0;
  int64_t step = 0;
  std::string reason;
};

struct RunEnded {
  RunOutcome outcome;
  int64_t step = 0;
};

// Sent only when now ≥ next_deadline(state): something is due (a directive's answer, an override's
// end).
struct Tick {};

// A person interferes. decide.h: why_not says beforehand whether it makes sense.
struct OperatorOverride {
  OverrideKind kind;
  std::string plan;       // set_plan: TOML
  ModeOrNone mode;        // mode: which
  std::string owner;      // who asks
  std::string reason;     // and why
  double expires_at = 0;  // seconds since the epoch, 0 = none
};

using Event =
    std::variant<RunRegisteredEvent, AttemptStarted, StepReported, CheckpointCompleted,
                 ReplayFinished, ReplayFailed, DirectiveChanged, RunEnded, Tick, OperatorOverride>;

// ---- effects
// ---------------------------------------------------------------------------------------------

// A window now exists. Ids of windows, replays and directives are given by the core: counters in
// its state.
struct OpenWindow : WindowSpan {};

struct OrderReplay : ReplayOrder {};

// True when a name is on such a list.
bool avoids(std::string_view list, std::string_view name);

struct CloseWindow : GapNumbers {
  int64_t window = 0;
  WindowStatus outcome;  // quiet, alarm, skipped, failed
};

// A window has been measured and stays open: a case is about it, or another replay is awaited. What
// is known of it can be shown meanwhile.
struct ShowWindow {
  CloseWindow numbers;  // the outcome is "open"
};

// The checkpoint is known to be good: rollbacks may go there, retention keeps it.
struct MarkVerified {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string uri;
};

struct IssueDirective {
  int64_t number = 0;
  DirectiveKind kind;
  std::string plan;  // TOML
  int64_t plan_version = 0;
  int64_t to_step = 0;
  std::string checkpoint_uri;
  std::string reason;
};

// The directive is not to be carried out any more.
struct EndDirective {
  int64_t number = 0;
  DirectiveState state;  // expired
  std::string reason;    // a sentence for people
};

// A decision for the log. Its verdict is none, a Verdict of triage.h, broken_instrument,
// unstable_training or stable_training; its action none, pin, recipe, bf16, rollback, hold, stop,
// return or quarantine.
struct RecordDecision : Decision {};

// The verifier computes wrongly: this run takes no answers of it any more.
struct QuarantineVerifier {
  std::string verifier;
  std::string reason;  // a sentence for people
};

// Checkpoints that must not be deleted: replaces the list before.
struct ProtectCheckpoints {
  std::vector<std::string> uris;
};

using Effect =
    std::variant<OpenWindow, OrderReplay, CloseWindow, MarkVerified, IssueDirective, RecordDecision,
                 ProtectCheckpoints, EndDirective, QuarantineVerifier, ShowWindow>;

}  // namespace gnomon::decide
