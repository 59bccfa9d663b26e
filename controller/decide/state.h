// Everything the decision core remembers about one run between two events. Plain data, bounded, and
// written as JSON beside the events, so that a controller that was killed goes on where it stood.
// Only decide() changes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/account.h"
#include "controller/decide/agreement.h"
#include "controller/decide/attribution_search.h"
#include "controller/decide/gap_detector.h"
#include "controller/decide/hazard.h"
#include "controller/decide/sentinels.h"
#include "controller/decide/spikes.h"
#include "controller/decide/triage.h"

namespace gnomon::decide {

// A complete checkpoint on the current attempt's lineage.
struct KnownCheckpoint {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string uri;
  int64_t plan_version = 0;
};

// A plan that the run has had, or that a directive has ordered.
struct KnownPlan {
  int64_t version = 0;
  std::string toml;
  bool bf16 = false;  // no GEMM of any site in FP8: a BF16 shadow would tell nothing
};

struct RunFacts {
  std::string name;
  std::string base_plan;
  std::vector<std::string> sites;
  int64_t layers = 0;
  int64_t checkpoint_every = 0;
  int64_t total_steps = 0;
  bool trainer_replays = false;
  int64_t tokens_per_step = 0;
  bool trainer_confirms = false;
  Capabilities capabilities = {};

  // The trainer can be asked for a replay itself.
  bool trainer_answers() const { return trainer_replays || trainer_confirms; }
};

struct AttemptFacts {
  int64_t number = 0;  // 0 before the first AttemptStarted
  int64_t base_step = 0;
  int64_t plan_version = 0;  // at its start
  std::string cause;
  std::string host;
};

// A window that waits for replays.
struct WindowState {
  int64_t id = 0;
  WindowKind kind;
  KnownCheckpoint start;
  int64_t steps = 0;
  std::string end_uri;
  int64_t attempt = 1;
  int64_t plan_version = 0;
  bool called = false;  // for what a sentinel or a spike has shown
  bool shadow_pending = false;
  bool probe_pending = false;
  bool instrument_pending = false;  // its perturbed BF16 replay
  bool audit_pending = false;       // the audit of its bits
  std::string exact_by;             // who gave the run's bits before another one was asked, too
  bool deferred = false;   // an alarm, but another case is open: it is opened when that one ends
  bool unsettled = false;  // no alarm, but it follows an action that has not been shown to work yet
  WindowStatus outcome = "quiet";  // that it is closed with once nothing is waited for any more
  std::string why;                 // it is then skipped
  std::optional<Measurement> measured;
  std::string verifier;     // who did the shadow
  std::string shadow_hash;  // of the shadow's weights at the end
  bool shadow_fingerprint_equal = false;
  std::optional<GapVerdict> judged;
  double level_percent = 0;  // at its alarm: D, or its mean over the newest windows
  // What sources say of it in BF16, the shadow first; and whether two of them agree: empty (not
  // asked or not answered yet), agreed, or alone (nobody else could be asked).
  std::vector<Witness> witnesses;
  std::vector<Witness> probe_answers;  // of its probe; D of each is known and finite
  bool confirm_pending = false;
  int64_t confirm_asked = 0;  // 1: another verifier, 2: a third one, 4: the trainer; added up
  std::string confirmation;
  std::string suspicion;  // why it is measured twice, where its own numbers look wrong
  bool odd = false;       // it is not by routine that it is measured twice
  // Per cent that the trainer's own reported losses lie over the replay's at its end.
  std::optional<double> reports_percent;
  int64_t end_step() const { return start.step + steps; }
};

// A replay that was ordered and not answered.
struct PendingReplay {
  int64_t id = 0;
  int64_t window = 0;
  ReplayRole role;
  int64_t number = 0;  // rescue: the search's prefix; of a TriageTest: its seed
  double deadline =
      0;  // only the trainer can do it, and may not; seconds since the epoch, 0 = none
  std::string avoid = {};  // verifiers that others are to do it for, as OrderReplay has it
  bool second = false;     // of a TriageTest: by a second source
};

// A window's end that was quiet and becomes "verified" once nothing before it is in doubt.
struct QuietEnd {
  int64_t start_step = 0;
  KnownCheckpoint end;
};

// A spike or non-finite step that is to be looked into.
struct Suspicion {
  SpikeFinding finding;
  KnownCheckpoint start;
  int64_t attempt = 1;
  int64_t plan_version = 0;
};

// What a set of rescued sites has left of the damage, over its replays.
struct RescueLook {
  int64_t prefix = 0;  // of the search
  int64_t count = 0;   // replays
  double sum_percent = 0;
  bool asked_again = false;  // nudged replays were ordered: one was not enough
};

// The one investigation that may be open at a time.
struct Case {
  int64_t window = 0;
  std::string stage;  // triage, attribution
  TriageEvidence evidence;
  int64_t far_window = 0;             // where the nudged replays of a spike begin; 0 = in `window`
  int64_t fork_window = 0;            // of the long fork
  VerdictName verdict;                // once triage is over
  std::optional<int64_t> since_step;  // the first step that is wrong, if the verdict knows
  std::vector<SiteScore> scores;      // as they came; empty before, or when nobody could do it
  AttributionSearch search;
  std::vector<RescueLook> looks;  // of sets that are asked
  double left_percent = 0;        // by the set that was shown last to take the damage away
  double left_error_percent = 0;
  std::string rescued_by;     // who has shown that; empty: the trainer
  bool rescue_asked = false;  // a second source was asked about the set that the search has found
};

// The run's instrument: how far BF16 and BF16 with another order of sums part in a window.
struct InstrumentState {
  int64_t checks = 0;
  double mean_square = 0;     // of the differences in per cent, exponentially weighted
  double last_percent = 0;    // the newest one
  int64_t windows_since = 0;  // shadows since the newest check
  bool broken = false;        // gap alarms lead to nothing
  bool disputed = false;      // broken: sources contradict each other, and none could be named
  double scale_agreed = 0;    // s of the detector that two sources have agreed upon; 0 = none yet
  double scale_recorded = 0;  // the newest growth of s that was said
  int64_t unanswered = 0;     // checks in a row without an answer that can be used
  // Verifiers whose offset another one contradicts, and nobody has borne out since.
  std::vector<std::string> offset_disputed;
};

// A transient fault that was found.
struct TransientFault {
  std::string host;
  int64_t step = 0;
};

// Why it was issued. restore: an operator's plan is over.
inline constexpr std::array<std::string_view, 6> kDirectivePurposes = {
    "contain", "transient", "return", "hold", "restore", "override"};
using DirectivePurpose = Word<kDirectivePurposes>;

struct PendingDirective {
  int64_t number = 0;
  DirectiveKind kind;
  DirectivePurpose purpose;
  int64_t plan_version = 0;
  int64_t to_step = 0;
  std::string checkpoint_uri;
  bool non_finite = false;   // the run's weights are not finite: going on from here is no way out
  double deadline = 0;       // of the answer, seconds since the epoch; 0 = none
  bool steps_since = false;  // the trainer has reported steps since: it lives
  bool silence_recorded = false;  // that it is silent was said
  int64_t attempt = 0;            // that was at hand when it was issued
};

// What an operator has ordered until a time.
struct StandingOverride {
  std::string owner;
  std::string reason;
  double expires_at = 0;     // seconds since the epoch, 0 = never
  ModeOrNone mode;           // of a mode override
  std::string plan;          // of a plan: TOML as ordered
  int64_t plan_version = 0;  // of a plan
};

// An action was carried out; the windows after it show whether it worked (recovery.cc).
struct Recovery {
  ActionName rung;  // rollback, pin, bf16
  bool by_rollback = false;
  int64_t attempt = 0;  // by_rollback: the attempt it started; 0 until that is known
  int64_t plan_version = 0;
  int64_t to_step =
      -1;  // by_rollback: where it goes back to; that checkpoint starts the next window
  int64_t harm_step = 0;  // the harm was seen after it: windows that end before show no recovery
};

// A probe that found the run's own plan as good.
struct PassedProbe {
  int64_t start_step = 0;
  int64_t end_step = 0;
  std::string source;       // who replayed it
  double log_evidence = 0;  // that the plan costs less than the margin
};

// The probes since the run was contained, or since the newest one that failed.
struct ProbeSeries {
  std::vector<PassedProbe> passed;
  int64_t unanswered = 0;       // that nobody did, or whose answers were not counted
  int64_t from_replay = 0;      // replays with a smaller number were ordered before
  bool nobody_else = false;     // another verifier was asked for, and there was none
  bool others_cannot = false;   // a probe that another verifier was asked for was not done
  bool trainer_cannot = false;  // the trainer was asked, and did not do it
  double margin_percent = 0;    // mean gap that they speak against, by the newest one
};

// The run is in another plan than it wants to be in.
struct Containment {
  ActionName rung;  // pin, recipe, bf16, hold
  std::vector<std::string> sites;
  int64_t plan_version = 0;
  bool recovered = false;
  int64_t quiet = 0;  // quiet windows since it recovered or since the last failed probe
  ProbeSeries probes;
  double accepted_percent = 0;  // mean gap that had been accepted before
  double level_percent = 0;     // of the gap that led to it; 0 = none was measured
  bool stays = false;  // no probe leads back: the weights show no damage that could be gone
};

// The first step that ran with another plan than the step before it.
struct PlanChange {
  int64_t step = 0;
  int64_t plan_version = 0;
};

struct RollbackCount {
  int64_t step = 0;
  int64_t count = 0;
};

// A window that a detector has taken into account.
struct EvidenceWindow {
  int64_t window = 0;
  int64_t start_step = 0;
  int64_t end_step = 0;
  double statistic = 0;    // of the detector after it
  std::string verifier;    // who measured it
  bool confirmed = false;  // and somebody else has measured the same
};

// What FP8 has added since BF16's lowest loss, by the windows of one verifier (kept_damage.cc).
struct KeptShare {
  std::string verifier;
  int64_t windows = 0;
  double sum = 0;      // of weighted D, per cent
  double weight = 0;   // lengths of a window that its windows stand for
  double squares = 0;  // of the weights
};
struct Kept {
  int64_t end_step = 0;  // up to which it is counted
  double deviation = 0;  // of D, per cent, where it began; 0 = not known
  std::vector<KeptShare> shares;
};

// Knows whether training itself is stable, as BF16 replays show (stability.cc).
struct Stability {
  double lowest = 0;           // held-out loss of a BF16 replay so far, nats; 0 = none was measured
  int64_t lowest_step = 0;     // where it was so
  std::vector<int64_t> signs;  // steps, ascending: BF16 loses ground there as well
  int64_t calm = 0;            // windows without a sign since the newest one
  std::optional<int64_t> unstable_since;  // a step: training is unstable in both precisions
  Kept kept;
};

// Health of data and training, whatever the precision (health.cc).
struct Health {
  std::vector<int64_t> batch_keys;  // of the newest steps' batch hashes, oldest first
  int64_t repeats = 0;              // steps in a row whose batch was among them
  bool repeats_recorded = false;
  bool collapse_recorded = false;
  bool overfitting_recorded = false;
  int64_t state_changed_step = -1;  // newest recorded one that found a changed state; -1 = none
  // Exponentially weighted mean of the training loss, which is never below what was reported; 0 =
  // none was.
  double mean_loss = 0;
};

// Audits in a row without bits that can be compared, before they are given up.
inline constexpr int64_t kAuditsUnusableMax = 3;

// What the shadows have shown so far, and where the next ones begin.
// Windows that a shock has shaken (shaken.h): what each bet has won.
struct ShakenState {
  std::vector<double> sums;
  int64_t plan_version = 0;
};

struct Watch {
  GapState gap;
  GapState long_gap;        // of the long forks
  GapState offset;          // of L8 − L16 at equal weights, 100·offset/L16, above its level
  GapState offset_down;     // and below it
  double offset_level = 0;  // its exponentially weighted mean: it moves slowly while a run learns
  double offset_level_before = 0;  // what it was when an alarm set it anew
  double offset_level_step = 0;    // the same mean of the windows' first steps
  int64_t offset_windows = 0;
  std::vector<EvidenceWindow> seen;         // the windows of gap.newest
  std::vector<EvidenceWindow> long_seen;    // of long_gap.newest
  std::vector<EvidenceWindow> offset_seen;  // of offset.newest
  std::vector<EvidenceWindow> offset_down_seen;
  InstrumentState instrument;
  int64_t burst_left = 0;      // windows to be taken back to back
  int64_t windows_judged = 0;  // shadows
  int64_t every = 0;  // steps between windows as chosen by what they cost; 0 = by the policy alone
  int64_t next_long = 0;           // no long fork begins before it
  int64_t long_start = -1;         // step where the next long fork begins; -1 = none is waited for
  int64_t unverified_windows = 0;  // in a row that no verifier has answered
  // Start of the first window since the newest verified checkpoint that lost more than is
  // tolerated and raised no alarm; -1 = none.
  int64_t dirty_since = -1;
  Stability stability;
  ShakenState shaken;
  SentinelState sentinels;
  int64_t audits_unusable = 0;  // in a row
  int64_t audit_in = 0;         // quiet windows until the next one is audited
  int64_t called_start = -1;    // a sentinel has ordered the window from here on; -1 = none waits
  int64_t called_step = -1;     // the newest step when a sentinel last did so; -1 = never
  Health health;
};

// What one verifier has answered of a run's windows.
struct VerifierRecord {
  std::string verifier;
  int64_t windows = 0;
  int64_t since_check = 0;     // windows since one of them was measured twice
  int64_t to_check = 0;        // windows that are to be measured twice from now on
  int64_t zeros = 0;           // in a row, that showed no difference at all
  int64_t repeats = 0;         // in a row, that gave the answer of the window before
  bool exact = false;          // its newest audit gave the run's bits
  bool was_exact = false;      // one has, and no other bits of it were left unexplained since
  std::vector<double> recent;  // D of the newest ones under `plan_version`
  int64_t plan_version = 0;
  int64_t last_start = -1;    // where its newest window began,
  double last_reference = 0;  // the BF16 end loss that it gave,
  std::string last_hash;      // and the hash of those weights
};

// Whose results and whose hardware are believed.
struct Trust {
  std::vector<std::string> verifiers;    // that have answered, newest last
  std::vector<std::string> quarantined;  // verifiers whose answers are not believed
  std::vector<TransientFault> transients;
  bool other_tokens = false;  // of the newest window: said once, until a window is quiet
  std::vector<VerifierRecord> records;
  bool zeros_recorded = false;  // that several sources see no difference at all
};

// The net speed-up as it stood when this step was new.
struct CostPoint {
  int64_t step = 0;
  double speedup = 1;  // of the FP8 steps alone
  double net = 0;
  bool speedup_measured = false;  // else it is the policy's word
};

// What replays have cost of what they may (spending.h).
struct Spending {
  int64_t trained = 0;        // steps, those that were done again too
  double spent = 0;           // compute of replays, in FP8 steps
  double spent_on_forks = 0;  // of it, long forks
  double overhead = 0;     // a shadow's time over that of its steps, smoothed; 0 = not measured yet
  int64_t dense_from = 0;  // `trained` when little had become known of the run
  int64_t distance = 0;  // of the newest two windows while they move apart; 0: the next comes soon
  int64_t last_start = -1;  // of the newest window
  int64_t asked_every = 0;  // steps between windows as the policy has them; 0 = not known yet
};

// What the run has cost so far, and what has been learned about its faults.
struct Costs {
  Account account;
  Hazard hazard;
  Spending spending;
  int64_t shadows = 0;        // replays
  double paused_since = 0;    // seconds since the epoch; 0 = not paused
  double last_step_at = 0;    // seconds since the epoch, of the newest step; 0 = none to count from
  double waited_seconds = 0;  // holds and verification on the trainer, of the account by then
  bool switching = false;     // a rollback was carried out and no step came since
  std::vector<CostPoint> points;  // ascending steps, all over the run
  int64_t point_every = 0;        // steps between them; doubles when there are too many
};

// What the run's verdict is made of beside the rest (run_verdict.h).
struct Standing {
  std::string condition;      // a verdict's name, or "starting"; without what depends on the clock
  double since = 0;           // that condition, seconds since the epoch
  int64_t first_base = 0;     // the step behind which the first attempt began
  int64_t measured_step = 0;  // up to which windows were measured, cases answered, or it was BF16
  int64_t undone_step = 0;    // the newest step that a rollback has undone
  int64_t owed_step = -1;     // where the run was to go back to when it ended; -1 = nowhere
  int64_t due_step = 0;       // end of the first window behind it that was opened; 0 = none yet
  int64_t measured_windows = 0;
  int64_t last_window = 0;  // the newest measured one, where it began and its D
  int64_t last_start = 0;
  double last_d_percent = 0;
  std::string unmeasured;  // why the newest window could not be measured; empty where it was
  std::string harm;        // a verdict's name or "alarm"; empty when a window was quiet since
  int64_t directives_unapplied = 0;  // refused or expired since one was applied
  // What the trainer has carried out, as it said, until its steps show the plan; after which step.
  std::optional<PendingDirective> promised = {};
  int64_t promised_step = 0;
  double reported_at = 0;        // the trainer's newest report, seconds since the epoch
  std::vector<double> steps_at;  // when the newest steps were reported
};

struct State {
  bool registered = false;
  bool ended = false;
  bool rounding_said = false;
  bool inherited = false;         // the trainer had another ledger's directives or plans before
  int64_t unknown_plan_said = 0;  // the newest plan of that ledger that was spoken of
  bool paused = false;            // the trainer has said so and reported no step since
  bool stopping = false;  // it was told to stop: nothing else is ordered until it begins again
  RunFacts run;
  AttemptFacts attempt;
  int64_t newest_step = 0;
  int64_t plan_version = 0;  // the newest that the trainer has shown to be in force

  int64_t next_window = 1;
  int64_t next_replay = 1;
  int64_t next_directive = 1;
  int64_t next_decision = 1;
  int64_t next_plan_version = 2;

  std::vector<KnownPlan> plans;
  std::vector<PlanChange> plan_changes;      // ascending steps, the newest ones
  std::vector<KnownCheckpoint> checkpoints;  // ascending steps
  int64_t next_start = 0;                    // where the next window begins
  std::vector<WindowState> windows;          // ascending ids
  std::vector<PendingReplay> replays;        // ascending ids
  std::vector<QuietEnd> quiet_ends;
  std::optional<KnownCheckpoint> last_verified;
  std::vector<KnownCheckpoint> older_verified;  // ascending steps: where else a rollback may go
  std::vector<std::string> refused_bases;  // URIs the trainer could not go back to, newest last
  int64_t watch_from = 0;                  // alarms of windows that begin before it are history
  std::vector<std::string> protected_uris;

  Watch watch;
  Trust trust;
  Costs money;
  SpikeState spikes;
  std::vector<int64_t> generic_spike_steps;
  std::optional<Suspicion> suspicion;  // came while another case was open
  std::optional<Case> investigation;

  std::optional<PendingDirective> directive;          // the core's own: one at a time
  std::vector<PendingDirective> operator_directives;  // ascending; at most one of pause and resume,
                                                      // one stop, checkpoint_now and set_plan
  std::vector<PendingDirective>
      expired_directives;  // the newest; reports of them are still accepted
  std::optional<StandingOverride> silence;
  std::optional<StandingOverride> mode_override;
  std::optional<StandingOverride> operator_plan;
  bool restore_plan = false;  // an operator's plan is over and the way back not yet ordered
  std::optional<Recovery> recovery;
  std::optional<Containment> containment;
  bool hold_due = false;  // an attempt began while the run was on hold; it is not told to pause yet
  bool fault_reported =
      false;  // observe and advise: said once, silent until a window is quiet again
  int64_t actions = 0;
  std::vector<RollbackCount> rollbacks;
  int64_t wait_windows = 0;         // quiet windows before the next probe
  int64_t quiet_since_return = -1;  // -1: FP8 never came back yet
  Standing standing;
};

// watching, triage, attribution, containing (an action is under way), contained (pinned or in BF16,
// and quiet), returning (probes), holding (paused until a person has looked) or ended.
std::string phase_name(const State& state);

}  // namespace gnomon::decide
