// The parts of decide(), as functions over one State and a list of effects that grows. Private to
// this folder.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

inline constexpr int64_t kIncidentLeadSteps =
    4;  // an incident's replay starts at least so long before, if it can
inline constexpr int64_t kRelapseWindows =
    16;  // an alarm this soon after a return finds the longer wait
inline constexpr size_t kCheckpointsNewest = 3;  // kept for incidents
inline constexpr size_t kCheckpointsMax = 64;
inline constexpr size_t kQuietEndsMax = 64;
inline constexpr size_t kGenericSpikesMax = 8;
inline constexpr size_t kRollbackCountsMax = 64;
inline constexpr size_t kPlanChangesMax = 64;
inline constexpr size_t kOlderVerifiedMax = 2;  // beside the newest, for a rollback that is refused
inline constexpr size_t kRefusedBasesMax = 64;
inline constexpr size_t kExpiredDirectivesMax = 8;
inline constexpr int64_t kDeferredMax = 2;  // alarms that wait for a case; later ones add nothing
inline constexpr const char* kRecoveryRule = "recovery";  // of an alarm: an action did not work

inline constexpr size_t kTransientsMax = 16;
inline constexpr size_t kQuarantinedMax = 64;
inline constexpr size_t kVerifiersMax = 64;
inline constexpr size_t kMoneyPointsMax = 96;
inline constexpr size_t kScoresMax = 4096;
inline constexpr int64_t kLevelWindows = 8;  // whose mean gap an alarm of evidence is about
inline constexpr int64_t kStepsAhead = 40;   // windows that a small gap's growth is carried on

inline constexpr int kPriorityTriage = 100;
inline constexpr int kPriorityAttribution = 80;
inline constexpr int kPriorityShadow = 50;
inline constexpr int kPriorityProbe = 30;
inline constexpr int kPriorityInstrument = 20;
inline constexpr int kPriorityLong = 10;

struct Core {
  State& s;
  const Policy& policy;  // with the mode that an operator may have set
  double now = 0;        // seconds since the epoch
  std::vector<Effect> effects = {};
  std::string reason = {};
  // The event touches nothing that checkpoints are kept for.
  bool keeps_checkpoints = false;

  // A decision for the log with what is the same in all of them filled in.
  RecordDecision& record(DecisionKind kind, std::string sentence,
                         const boost::json::object& evidence);
  void say(const std::string& sentence);
  bool enforcing() const { return policy.mode == Mode::kEnforce; }
  bool held() const { return s.containment && s.containment->rung == "hold"; }
  // By whose order an alarm leads to nothing now; empty when no operator interferes and the run was
  // not told to stop.
  std::string muted() const;
};

// -- windows.cc: from checkpoints to windows
void start_attempt(Core& core, const AttemptStarted& event);
// Says once when the trainer shows a plan that only a lost ledger knew.
void note_plan(Core& core, int64_t version);
// Steps after `base` are gone: with them the checkpoints, windows and suspicions that rest on them.
void forget_after(Core& core, int64_t base);
// Whether all steps of start+1..end ran under one plan.
bool one_plan(const State& state, int64_t start, int64_t end);
void take_checkpoint(Core& core, const CheckpointCompleted& event);
WindowState* find_window(State& state, int64_t id);
std::string window_name(const WindowState& window);  // "Window 12 (steps 240–260)"
// The plan that the steps after a checkpoint ran with: a rollback's base was saved under an older
// plan.
int64_t plan_after(const State& state, const KnownCheckpoint& start);
WindowState& add_window(Core& core, WindowKind kind, const KnownCheckpoint& start, int64_t end_step,
                        const std::string& end_uri, int64_t plan_version);
// Closes and forgets a window and its unanswered replays. A window that is not there is nothing to
// do.
void close_window(Core& core, int64_t id, WindowStatus outcome);
// Of one that has been measured and is still open; else nothing.
void show_window(Core& core, int64_t id);
// Closes incident windows that no case asks for any more.
void close_orphans(Core& core);
// Closes a window with its outcome once nothing is waited for in it any more.
void finish_window(Core& core, int64_t id);
// Only the trainer's process has it, so only the trainer can replay from it.
bool in_memory(const KnownCheckpoint& checkpoint);
// Orders a replay of the window; `wanted` says how, its ids and purpose are filled in. Returns its
// id.
int64_t order(Core& core, const WindowState& window, ReplayRole role, int64_t number,
              OrderReplay wanted);
int64_t order(Core& core, const WindowState& window, Arm arm, ReplayRole role,
              const std::string& plan, bool endpoints, int priority);
// A window ended quietly here; the oldest such ends are forgotten beyond the bound.
void add_quiet_end(State& state, int64_t start_step, KnownCheckpoint end);
// The same of a window that was measured, unless it lost more than is tolerated or belongs to a
// rise of the evidence: what is verified later will lie behind it.
void add_quiet_end(Core& core, const WindowState& window);
// Quiet ends become verified when nothing before them is in doubt any more.
void settle_verified(Core& core);
// Says which checkpoints must stay, if that changed, and forgets the others.
void protect(Core& core);

// -- judging.cc: from a shadow's measurement to quiet or alarm
void take_shadow(Core& core, int64_t window, const ReplayFinished& replay);
void shadow_failed(Core& core, int64_t window, const std::string& why);
// Windows that were put off while a case was open are judged now.
void judge_deferred(Core& core);
// The window is quiet, and what follows from that.
void pass_quiet(Core& core, int64_t window);
// The window, as it was judged, is an alarm.
void raise_alarm(Core& core, WindowState& window);
GapSettings gap_settings(const Policy& policy);
// A window as the detector reads it; D is 0 where none was measured.
GapSample gap_sample(const Core& core, const WindowState& window);
GapSettings long_gap_settings(const Policy& policy, int64_t steps);
// Of R, below which the windows before an alarm have not added to it: a quarter of the suspicion.
double risen_evidence(const Policy& policy);
GapSettings offset_settings(const Policy& policy, double level_percent);

// -- recovery.cc: has an action worked?
// What a mean gap may be: the tolerance, or what was accepted as the run's own.
double tolerated_percent(const Core& core);
// Whether the window shows what an action has led to.
bool awaits_recovery(const State& state, const WindowState& window);
// Such a window raised no alarm: with those before it it may show that the run has recovered, or
// that it has not; else it stays open.
void weigh_recovery(Core& core, int64_t window);
// A window of a run that is in BF16 shows it by itself.
void recover_in_bf16(Core& core, int64_t attempt, int64_t plan_version, int64_t start_step,
                     int64_t end_step);
// Windows that wait for more are closed.
void close_unsettled(Core& core, WindowStatus outcome);
// The same of those whose action is not in force any more.
void release_unsettled(Core& core);

// -- stability.cc: is training itself stable?
// A window's BF16 replay, after the window was judged to be no harm of FP8's.
void note_bf16(Core& core, const WindowState& window, const ReplayFinished& replay);
// FP8 ends better by more than the ceiling, as two sources say.
void note_parted(Core& core, const WindowState& window);
// A gap that chance explains: the open case's.
void note_chance(Core& core);
// Steps after `base` are undone.
void forget_stability_after(State& state, int64_t base);
// A spike that BF16 shares.
void note_shared_spike(Core& core, const SpikeFinding& finding);

// -- seen.cc: which windows the evidence is made of
// A spike that BF16 shares lies in the window: what follows it diverges by chance, and the window
// is no evidence.
std::optional<int64_t> generic_spike_in(const State& state, const WindowState& window);
// After observe_gap: whose sample it was.
void note_seen(const GapState& gap, std::vector<SeenWindow>& seen, const WindowState& window,
               double statistic);
// Of an alarm that windows before it have added to (evidence of at least `risen` before it): the
// step up to which the gaps say nothing against FP8, the end of the last window after which the
// evidence was at most 1, or else at its least, of those that are known one by one. Nothing for
// other alarms.
std::optional<int64_t> evidence_rises_after(const State& state, int64_t alarm, double risen);
// Whether that is, or may become, this step.
bool evidence_may_rise_after(const State& state, int64_t step);
// What the windows that hold a step have shown is forgotten. Of them those can be that are among
// the newest kGapNewestMax.
void forget_spiked(Core& core, int64_t step);
// What a window, or all windows of a verifier, have shown is forgotten; of a verifier with windows
// before the newest kGapNewestMax what was learned from those is, too.
void forget_window(Core& core, int64_t window);
void forget_verifier(Core& core, const std::string& verifier);
// Steps after `base` are gone and may be measured again: their windows count once.
void forget_seen_after(Core& core, int64_t base);

// -- verifier_records.cc: what is remembered of each verifier
// Per cent. The least difference in 1,250 healthy windows of the detection study was 0.00025.
inline constexpr double kNoDifference = 1e-6;
// Whether a shadow is to be measured a second time; and why, where no honest replay answers so.
struct CheckDue {
  bool check = false;
  bool odd = false;  // not by routine
  std::string suspicion;
};
// Remembers a shadow's answer, the newest witness of its window.
CheckDue note_answer(Core& core, const WindowState& window, const ReplayFinished& replay);
bool believed(const State& state, const std::string& verifier);
// Those that have answered and are believed, sorted.
std::vector<std::string> believed_verifiers(const State& state);
const VerifierRecord* find_record(const State& state, const std::string& verifier);
// Counts the witness's answers in a row without any difference between FP8 and BF16.
void note_difference(State& state, const Witness& witness);
// What this witness has answered again and again that no honest one does; empty where it has not.
std::string implausible(const State& state, const Witness& witness);
void forget_record(State& state, const std::string& verifier);
// A window of the verifier was measured twice, or nobody could do so.
void note_checked(State& state, const std::string& verifier);
// So many windows of the verifier from now on are measured twice.
void check_next(State& state, const std::string& verifier, int64_t windows);
// Per cent that the trainer's own reported losses lie over the replay's, at the window's end.
std::optional<double> reports_over(const ReplayFinished& replay);
// Of the detector's scale; 0 = no bound yet.
double scale_most(const Core& core);
// After a window: says that the scale has grown, and has the verifiers checked.
void note_scale(Core& core);

// -- confirm.cc: a second source for a window's BF16 replay
Witness witness_of(const ReplayFinished& replay);
// After a shadow's measurement: orders a second one where that is due. True when the window is done
// with.
bool note_shadow(Core& core, int64_t window, const ReplayFinished& replay);
// The open case rests on the window's BF16 replay: its `confirmation` is wanted.
void confirm_for_case(Core& core, int64_t window);
void take_confirm(Core& core, int64_t window, const ReplayFinished& replay);
void confirm_failed(Core& core, int64_t window, const std::string& why);
// The verifier on whose unconfirmed windows alone an alarm of many windows rests; empty = none.
std::string rests_on(const Core& core, const WindowState& window);
// What sources said of the window's BF16 replay, and what they are still asked.
void forget_witnesses(State& state, WindowState& window);
// What it said of open windows other than `but` is forgotten: those that it measured are measured
// again.
void drop_witness(Core& core, const std::string& verifier, int64_t but);
// Follows from broken_instrument in a case: the case ends and nothing is changed.
void doubt(Core& core, const Verdict& verdict);

// -- instrument.cc: is what measures sound, and is there anybody to measure?
bool instrument_due(const Core& core);
// Nothing clears a broken instrument where no gap is judged: a run in BF16 leaves it behind.
void mend_instrument_in_bf16(Core& core);
void order_instrument(Core& core, WindowState& window);
void take_instrument(Core& core, int64_t window, const ReplayFinished& replay);
void take_instrument_elsewhere(Core& core, int64_t window, const ReplayFinished& replay);
void take_instrument_again(Core& core, int64_t window, const ReplayFinished& replay);
void instrument_failed(Core& core, int64_t window, const std::string& why);
// A window that nobody verified.
void note_unverified(Core& core);

// -- decide.cc
// Nobody has done the replay, and nobody will.
void replay_failed(Core& core, const PendingReplay& replay, const std::string& why);

// -- case.cc: one investigation from the alarm to the verdict
void open_gap_case(Core& core, const WindowState& window);
void open_drift_case(Core& core, const WindowState& window);
void suspect_step(Core& core, const SpikeFinding& finding);
// Opens the case of a suspicion that had to wait.
void open_suspicion(Core& core);
// Whether the open case asks for replays of this window.
bool of_case(const State& state, int64_t window);
void take_case_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result);
// Something that the open case waits for is known.
void resume_case(Core& core);
// Whether the replay suffers at the step that the open case is about.
std::optional<bool> suffers_in_case(const Core& core, const WindowState& window,
                                    const ReplayFinished& replay);
void case_replay_failed(Core& core, const PendingReplay& replay, const std::string& why);
// What only the trainer could have done, and has not.
void time_out_replays(Core& core);
RecordDecision& record_verdict(Core& core, const Verdict& verdict);
// Which tokens the run took instead of the data's: the hashes of its steps, as evidence.
boost::json::array batches_evidence(const std::vector<OtherBatch>& batches);
boost::json::array other_batches(const Case& investigation);
// The case is over without an action: what had waited for it goes on. Its window is closed, but not
// with an empty outcome.
void end_case(Core& core, WindowStatus outcome);

// -- verdicts.cc: what follows from a verdict
void conclude(Core& core, const Verdict& verdict);
// The verifier gets no work of this run any more, and its windows are no evidence.
void distrust(Core& core, const std::string& verifier, const std::string& why, VerdictName verdict,
              int64_t window);
// The window's shadow is done again by somebody else; its case, if any, ends.
void measure_again(Core& core, int64_t window);

// -- attribution.cc: from a verdict against FP8 to the guilty sites
void start_attribution(Core& core);
void take_scores(Core& core, const ReplayFinished& result);
void scores_failed(Core& core);
void take_rescue(Core& core, int64_t prefix, const ReplayFinished& result);
void rescue_failed(Core& core, int64_t prefix);

// -- ladder.cc: from a verdict to an action
// True when the next rung blames single sites, so that attribution is worth its replays.
bool next_rung_pins(const Core& core);
void respond(Core& core, VerdictName verdict, const std::vector<std::string>& sites);
// The sites that a containment has in BF16 while the others are in FP8.
std::vector<std::string> pinned_sites(const State& state);
// The containment that a rung and its plan lead to.
void contain(Core& core, ActionName rung, const std::vector<std::string>& sites,
             int64_t plan_version);
// Pauses the run until a person lets it go on, or stops it.
void hold(Core& core, const std::string& why, DirectiveKind directive = "pause");
// An attempt that began while the run was on hold is paused too, since its trainer may know nothing
// of the hold: at once, or when what keeps the core from ordering (a silence, a plan or a mode by
// hand, another directive) is over.
void hold_if_due(Core& core);
// The containment of a run that stands in this plan: none in its own.
std::optional<Containment> standing_in(const State& state, int64_t plan_version);
// What the run would stand in if no operator interfered.
int64_t wanted_plan(const State& state);

// -- rollbacks.cc: where a run may go back to
// How often a step has been gone back to.
int64_t rollbacks_to(const State& state, int64_t step);
void count_rollback(State& state, int64_t step);
// The newest verified checkpoint at or before a step that the trainer has not refused.
std::optional<KnownCheckpoint> good_checkpoint(const State& state, int64_t newest);
// A rollback was refused: further back, or held when no good checkpoint is left. At most one
// directive is issued, and no checkpoint is tried twice.
void go_further_back(Core& core, const PendingDirective& refused);

// -- money.cc: what the run has cost, and how often verifying it pays
void count_step(Core& core, const StepReported& step);
// The steps after `base` are gone; before the state forgets them.
void count_lost_steps(Core& core, int64_t base, bool rolled_back);
void count_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result);
void count_fault(Core& core);
void count_pause(Core& core, bool paused);
// Takes another cadence when the policy lets the economics choose and one is better.
void choose_cadence(Core& core);

// -- directives.cc: a directive from its issue to its end
// Issues a directive of the core's own and remembers it as pending; returns its number.
int64_t issue(Core& core, PendingDirective pending, const std::string& plan,
              const std::string& why);
// An operator's: it stands beside the core's own.
int64_t issue_override(Core& core, PendingDirective pending, const std::string& plan,
                       const std::string& why);
std::string directive_name(const PendingDirective& directive);  // "Directive 3 (rollback to 200)"
void directive_changed(Core& core, const DirectiveChanged& event);
// The directive is not to be carried out any more; that it was anyway may still be heard.
void withdraw(Core& core, const PendingDirective& directive, const std::string& reason);
void withdraw_all(Core& core, const std::string& reason);
// Overdue answers.
void time_out_directives(Core& core);
// The trainer lives, or begins again.
void note_steps(State& state);
// Whether an order to stop is unanswered.
bool stop_is_open(const State& state);
void note_new_attempt(Core& core);

// -- overrides.cc: what operators order
void take_override(Core& core, const OperatorOverride& asked);
void end_overrides(Core& core);
// The trainer has resumed: a hold is over.
void finish_resume(Core& core);
// An operator's plan was not taken.
void operator_plan_failed(Core& core);
// Orders the way back from an operator's plan as soon as no other directive is open.
void restore_plan_if_due(Core& core);
std::string until(double expires_at);  // "until 2026-11-21 13:00:00 UTC"

// -- returning.cc: what quiet windows lead to
void note_quiet(Core& core, int64_t plan_version);
bool probe_due(const Core& core);
void order_probe(Core& core, WindowState& window);
// FP8 comes back when probes have shown enough and nothing else is under way.
void return_if_due(Core& core);
// The trainer has taken the base plan again, or has refused to.
void finish_return(Core& core);
void refuse_return(Core& core);
void take_probe(Core& core, const PendingReplay& ordered, const ReplayFinished& replay);
void probe_failed(Core& core, const PendingReplay& ordered, const std::string& why);
// What a verifier, or any source in the steps first to last, has said in probes is forgotten.
void forget_probes_of(State& state, const std::string& verifier);
void forget_probes_of_steps(State& state, int64_t first, int64_t last);

// -- standing.cc: what the run's verdict (run_verdict.h) is made of
// The trainer has reported something; before the event is handled.
void note_report(Core& core, const Event& event);
// A window's BF16 replay gave a D that is judged.
void note_measured(State& state, const WindowState& window);
// Harm was found and waits for an answer: `what` is a verdict's name, or "alarm".
void note_harm(State& state, const std::string& what);
// Harm is over: a window was quiet, or a person let the run go on. Not while the answer to it is on
// its way.
void clear_harm(State& state);
// The run's condition after an event.
void note_standing(Core& core);

// "tolerance 0.50%" and the like: a share in per cent with two digits, or "not finite".
std::string percent(double value);
boost::json::value number(double value);  // null when not finite
boost::json::array names(const std::vector<std::string>& list);

}  // namespace gnomon::decide
