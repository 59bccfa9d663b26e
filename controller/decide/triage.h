// Triage: from an alarm to a verdict. triage() is a pure function of the evidence so far: it says
// which replays to order next, cheapest first, or what the verdict is and why. Hardware, data and
// kernels are ruled out before numerics is blamed; and chance, when the alarm rests on one window
// alone, before anything that is not a matter of bits. docs/triage.md draws the table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/measurement.h"
#include "controller/decide/spikes.h"

namespace gnomon::decide {

// What a replay under the run's own plan says about the run.
struct Reproduction {
  bool reproduces = false;
  bool bitwise = false;  // rests on hashes; else on losses, because the fingerprints differ
  std::optional<int64_t> first_mismatch_step;
  bool other_batch = false;  // at that step the run's tokens were not the replay's
  std::string sentence;      // how it was compared and what came out
  std::vector<OtherBatch> other_batches = {};  // of other_batch: which tokens the run took
};

// A window that alarmed by its gap of `measured`. Bits count only between equal fingerprints and
// when at least one step was compared; else losses do.
Reproduction compare_same_gap(const ReplayFinished& same, const Measurement& measured);
// By losses the replay reproduces when its own end loss lies over the BF16 replay's by at least
// half the gap.
Reproduction compare_gap_by_losses(const ReplayFinished& same, const Measurement& measured);
// A step that was not finite or a spike: without comparable bits the replay reproduces when it
// shows the same.
Reproduction compare_same_spike(const ReplayFinished& same, const SpikeFinding& finding,
                                int64_t steps_asked);
Reproduction compare_spike_by_losses(const ReplayFinished& same, const SpikeFinding& finding,
                                     int64_t steps_asked);

// How a replay went through the step of a finding.
struct SpikeComparison {
  std::optional<double> loss;  // at the step; absent when the replay did not get there
  bool non_finite = false;     // a loss was not finite, or the replay stopped early for that reason
  bool spikes = false;         // over the threshold, or at least half as high as the run's spike
};

// Steps by which a replay's spike may come off the run's when it began long before.
inline constexpr int64_t kAroundSpike = 8;

// Looks at the finding's step and the two before it. `around` > 0, for a replay that began so long
// before that it goes another way: also at so many steps to both sides of it, and the spike counts
// by its rise over the replay's own losses before it (median), because the run's trend may hold
// damage that the replay does not share.
SpikeComparison compare_spike(const ReplayFinished& replay, const SpikeFinding& finding,
                              int64_t steps_asked, int64_t around = 0);

// What the core wants a replay for: the tests of the triage, and
//   shadow, probe         a window's own, and whether the run's plan is good again
//   instrument*           whether BF16 itself can be believed
//   scores, rescue        what FP8 costs at each site, and without the sites that are suspected
inline constexpr std::array<std::string_view, 21> kReplayRoles = {"shadow",
                                                                  "probe",
                                                                  "instrument",
                                                                  "instrument_again",
                                                                  "instrument_elsewhere",
                                                                  "scores",
                                                                  "rescue",
                                                                  "same",
                                                                  "bf16",
                                                                  "same_again",
                                                                  "same_elsewhere",
                                                                  "same_third",
                                                                  "same_on_trainer",
                                                                  "bf16_far",
                                                                  "eager",
                                                                  "fp8_nudged",
                                                                  "bf16_nudged",
                                                                  "fakequant",
                                                                  "long_fork",
                                                                  "confirm",
                                                                  "audit"};
using ReplayRole = Word<kReplayRoles>;
inline bool is_of_instrument(ReplayRole role) { return role.starts_with("instrument"); }

// One replay that the triage wants. Kinds:
//   same             the run's plan, by anyone
//   same_again       the run's plan once more, by who found a difference: are its bits the same?
//   same_elsewhere   the run's plan, by another verifier than the one that found a difference
//   same_third       the run's plan, by a third one, where these two contradict each other
//   same_on_trainer  the run's plan, by the trainer's own device
//   bf16             every GEMM in BF16 (of a spike; a gap has its BF16 replay already)
//   bf16_far         the same from the oldest checkpoint kept: did FP8 spoil the weights before?
//   fp8_nudged       the run's plan from weights nudged by rounding noise of this seed
//   bf16_nudged      BF16 from weights nudged in the same way
//   eager            the run's plan without the compiler, of a run that uses one
//   fakequant        FP8 values in BF16 GEMMs
//   long_fork        BF16 over a longer stretch of the run: does the gap keep growing?
//   confirm          the case's BF16 replay by another source; answered as `confirmation`
struct TriageTest {
  ReplayRole kind;
  int64_t seed = 0;
  bool second = false;  // by another source than who answered it: does that one say the same?
  bool operator==(const TriageTest&) const = default;
};

struct TriageAnswer {
  ReplayRole kind;
  int64_t seed = 0;
  bool failed = false;    // nobody could do it,
  bool disputed = false;  // or sources contradict each other about it
  std::string verifier;
  std::optional<Reproduction> reproduction;  // same, same_again, same_elsewhere, same_on_trainer
  std::optional<Reproduction> by_losses;     // the same without its bits, where those differ
  std::string end_hash;                      // of their weights; empty = not said
  std::optional<SpikeComparison> spike;      // of a finding
  std::optional<double> start_loss_plan;     // at the window's beginning, under the replay's plan
  std::optional<double> end_loss;            // in BF16; may be not finite
  std::optional<double> long_d_percent;      // long_fork: D over its
  int64_t long_steps = 0;                    // steps
  bool on_trainer = false;                   // the trainer did it
  bool exact = false;                        // on a machine that gives the run's bits
};

// Everything that is known in a case. Bounded: every test is answered once.
struct TriageEvidence {
  std::string trigger;                  // gap, offset, audit, spike, non_finite
  Measurement measured;                 // trigger gap
  std::optional<SpikeFinding> finding;  // triggers spike, non_finite
  // Sequential evidence over many windows has ruled chance out already.
  bool chance_excluded = false;
  int64_t steps = 0;         // trigger gap: the window's length
  double level_percent = 0;  // trigger gap: D of the window, or of the newest that alarmed together
  bool in_bf16 = false;      // the run was in BF16: there is no FP8 to blame
  // What a second source says of the BF16 replay that the case rests on: empty (not known yet),
  // agreed, or alone (nobody else could be asked).
  std::string confirmation = "agreed";
  std::string source;       // who did that replay
  bool on_trainer = false;  // the trainer itself
  // Per cent that the trainer's reported losses lie over that replay's at its end.
  std::optional<double> reports_percent;
  // An alarm of many windows: the verifier on whose unconfirmed windows alone it rests; empty =
  // none.
  std::string rests_on;
  std::vector<TriageAnswer> answers;
  std::vector<TriageAnswer> seconds;  // what further sources say of those that a verdict rests on
};

struct TriageRules {
  int pairs = 3;  // nudged replays of each arm beside the plain ones; 0 = chance is not asked
  double tolerance_percent = 0.1;  // a gap up to this is none
  double ceiling_percent = 0;      // of one window, that is too much even if nobody can ask chance
  double one_window_percent = 0;   // limit of the rule that alarmed by one window; 0 = many did
  double noise_percent = 0;        // deviation of healthy windows, as far as it is known
  bool trainer_replays = false;    // the trainer can be asked for a replay itself
  bool other_verifiers = false;    // there is another verifier to ask
  bool third_verifier = false;     // and a third one
  bool differing_was_exact = false;  // who found other bits has given the run's own before
  int64_t earlier_transients = 0;    // transient faults found on the trainer's host not long ago
  bool transients_spent = false;     // the next one counts as persistent
  double accept_percent = 0;         // a gap that will stay under this is worth less than FP8 saves
  int64_t steps_ahead = 0;           // of the run: how far a growing gap is carried on
  bool compiled = false;             // the run's steps are compiled code
  bool sends_low = false;            // the plan sends gradients or weights in low precision
  bool overdrawn = false;      // by spikes that BF16 shared: the next one is asked about briefly
  double between_percent = 0;  // that honest sources' losses may lie apart
  double naming_percent = 0;   // apart by more, one of them is wrong
};

// Verdicts: transient_fault, persistent_fault, verifier_fault, data_mismatch, generic_spike,
// chance, kernel_bug, accepted_gap, fp8_numerics, scale_drift, unexplained, broken_instrument (one
// source alone says so, and nothing bears it out; see also instrument.cc and confirm.cc).
// unstable_training and stable_training are not found by replays of a case; see stability.cc.
struct Verdict {
  VerdictName name;
  std::string sentence;               // for people
  std::string verifier;               // whose answers are not to be believed; empty = nobody's
  std::optional<int64_t> since_step;  // faults: the first step that is wrong
};

// Exactly one of the two: tests to be under way now (asked already or not), or the verdict.
struct TriageStep {
  std::vector<TriageTest> tests;
  std::optional<Verdict> verdict;
  std::vector<TriageTest> rests_on = {};  // single answers, without which it would be another one

  static TriageStep ask(std::vector<TriageTest> tests) {
    return {std::move(tests), std::nullopt, {}};
  }
  static TriageStep end(VerdictName name, std::string sentence) {
    return {{}, Verdict{name, std::move(sentence), "", std::nullopt}, {}};
  }
  TriageStep on(std::vector<TriageTest> answers) && {
    rests_on = std::move(answers);
    return std::move(*this);
  }
};

// For a spike that is not generic: true when BF16 suffers as well from the nearest checkpoint,
// whose weights were spoilt already, and not from the oldest one.
bool spoilt_before(const TriageEvidence& evidence);

// Replays of the run's own plan got other bits than the run, and no two of them the same: exact
// replay does not hold, and bits accuse no machine.
bool replays_disagree(const TriageEvidence& evidence);

// The gap that a case is about, in per cent: the level of an alarm of evidence; of one window,
// which stands out because it was chosen, the mean over its nudged replays where there are two
// pairs, else its D.
double level_of(const TriageEvidence& evidence);

TriageStep triage(const TriageEvidence& evidence, const TriageRules& rules);

// What a gap of `level` per cent after `steps` steps comes to after `ahead` more, when it was
// `later` after `later_steps`: it grows as a power of the steps, with an exponent between 0 and 1
// through the two points (√t is healthy rounding noise, t a bias, 0 saturation).
double carried_on(double level, int64_t steps, double later, int64_t later_steps, int64_t ahead);

// One-sided Fisher exact test: the chance to see at least `hits_a` of `a` against at most `hits_b`
// of `b` if both arms spiked equally often.
double fisher_p(int64_t hits_a, int64_t a, int64_t hits_b, int64_t b);

// What a rescue leaves of the damage, 100·(L16(w_rescue) − L16(w16))/L16(w16), over `replays` of
// it: the plain one and nudged ones. Infinite when one of them is not finite or still suffers.
struct RescueLeft {
  double mean_percent = 0;
  double error_percent = 0;  // standard error
  int64_t replays = 1;
};
inline constexpr int64_t kRescueNudges =
    3;  // further replays of a rescue that chance may have made
// At most so much may be left of a damage of `d_percent`: what is tolerated, or a tenth of the
// damage up to one and a half times that, for the sites that stay in FP8 cost something in health,
// too. Never over half of the damage.
double rescue_limit(double d_percent, double tolerance_percent);
// Says whether the damage is gone; nothing where one replay is not enough to say so.
std::optional<bool> rescue_recovers(const RescueLeft& left, double limit_percent);
// Does a rescue take the spike away? Finite, and either under the threshold or at most
// `recovered_share` of the way from BF16's loss to the run's.
bool rescue_avoids_spike(const ReplayFinished& rescue, const SpikeFinding& finding,
                         const SpikeComparison& bf16, double recovered_share, int64_t steps_asked);

}  // namespace gnomon::decide
