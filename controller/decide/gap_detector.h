// Decides from one number a window, D = 100·gap/L16, whether FP8 is worse than it may be: a test
// that may be looked at after every window for as long as the run lasts. Pure arithmetic over a
// small plain state; the caller says which windows count and what an alarm leads to.
//
// The evidence is a Shiryaev–Roberts mixture of e-values (gap_evalues.h), numbers e_j made from D
// and from what was known before it, whose mean under the null, given the past, is at most 1: R_j ←
// (1 + R_j)·e_j from 0, R = Σ π_j R_j with Σ π_j = 1. The null is "not worse than tolerated": the
// mean of D is at most δ0.
//
// Guarantee. Because E[R_w | past] ≤ R_{w−1} + 1, R_w − w is a supermartingale that starts at 0. So
// the mean number of windows until a false alarm R ≥ A is at least A, and P(false alarm within W
// windows) ≤ W/A, with A = `windows_between_false_alarms`, whatever decides when a window is
// measured and when one looks. That is why a suspicion costs nothing: at R ≥ √A the caller is asked
// for fresh windows back to back, and they are added to the same R. (A confirmation with evidence
// of its own would have to share the false alarms with R and begin from nothing.)
//
// Beside the evidence stand two rules for a single window, `ceiling` and `jump`: a mixture of
// e-values that are valid for every symmetric noise needs two or three windows however far one lies
// out. They are outside the guarantee; the caller has to rule chance out by other means.
//
// Nothing in it needs the scale to be constant or the windows to be equally long: a change of
// cadence or batch size rescales s before the next D is seen, which is predictable, so the evidence
// stays.
//
// Neighbouring windows of a run are correlated. A window is therefore compared with what the one
// before it lets expect: the null's mean is δ0 + ρ·(D_before − δ0), ρ = `correlation`, with
// D_before at least δ0 − s. After a window above δ0 that is at least E[D | past] for every
// correlation r ≤ ρ, because E[D | past] = m + r·(D_before − m) with m ≤ δ0. After one below δ0 it
// is too low when r < ρ, but then the evidence has fallen by more. docs/detector.md shows by
// simulation that the promise is kept for correlations of 0 to 0.4, and what the guarantee does not
// cover: skewed noise, a deviation above its confidence limit, a baseline learned too low.
//
// Sources: Shiryaev (1963) and Roberts (1966) for R; Shin, Ramdas and Rinaldo, "E-detectors" (2022)
// for sums of e-values and the bound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gnomon::decide {

// Healthy runs of the detection study have 0.08 to 0.28 between neighbouring windows.
inline constexpr double kGapCorrelation = 0.4;

struct GapSettings {
  // eprocess; or a rival (gap_rivals.h): fixed, shewhart, cusum, ewma, glr.
  std::string kind = "eprocess";
  double windows_between_false_alarms = 10000;  // mean, at least 20
  double tolerance_percent = 0.1;  // the null's mean is never learned to be more than this
  double ceiling_percent = 0.5;    // one window above it is an alarm by itself; infinity = off
  double jump_deviations = 0;  // eprocess: and one that lies so many s⁺ over δ0, and over the
                               // tolerance; 0 = off
  double prior_scale_percent = 0.05;  // s before anything was learned; positive
  int burn_in_windows =
      20;  // δ0 is learned over so many; until then, and with 0, it is the tolerance
  // Shape of D about its mean: symmetric, or any (slower; silent until the scale was learned).
  std::string noise = "symmetric";
  // eprocess: of neighbouring windows, that the evidence allows for.
  double correlation = kGapCorrelation;
  bool burst = true;                // eprocess: ask for fresh windows at a suspicion
  double fixed_percent = 0.25;      // of the rival `fixed`
  std::optional<double> threshold;  // of a rival in its own unit, instead of the derived one
};

struct GapSample {
  double d_percent = 0;
  double floor_percent = 0;    // RMS of BF16 against perturbed BF16: s is never less; 0 = not known
  double steps = 0;            // K, the window's length; 0 = not known
  double tokens_per_step = 0;  // 0 = not known
  int64_t plan_version = 0;
  double most_percent = 0;  // s is never more, whatever was learned; 0 = no bound
};

// What was learned about D: s² is a mean of squared successive differences, ½(D_i − D_{i−1})²,
// which neither a shift nor a slow drift of the mean inflates.
struct GapScale {
  double variance = 0;           // s² in per cent², the prior's share included
  double weight = 0;             // of `variance`, in squares; 0 before the first window
  double freedom = 0;            // degrees of freedom that were measured, without the prior
  std::optional<double> last_d;  // of the window before, when the next difference may use it
  double steps = 0;
  double tokens_per_step = 0;
  int64_t plan_version = 0;
  int64_t baseline_windows = 0;  // of the mean below
  double baseline_mean = 0;
  std::optional<double> null_percent;  // δ0 once it was learned
  double accepted_percent = 0;         // what was accepted after an alarm: δ0 may go so far
};

// What speaks against the null.
struct GapEvidence {
  std::vector<double> sums;          // R_j of gap_members(); empty before the first window
  std::optional<double> previous_d;  // of the window before
  int64_t burst_left = 0;            // windows of a burst still to come
  double burst_level = 0;            // R at which another may be asked for
  double rival = 0;                  // the sum or mean of CUSUM and EWMA
  std::vector<double> recent;        // GLR: the newest x, oldest first
};

inline constexpr size_t kGapNewestMax = 16;  // windows that can be forgotten exactly

struct GapState {
  GapScale scale;
  GapEvidence evidence;
  // Both as they were before the windows of `newest`: forgetting replays from there.
  GapScale scale_before;
  GapEvidence evidence_before;
  std::vector<GapSample> newest;  // oldest first, at most kGapNewestMax
};

struct GapVerdict {
  bool alarm = false;
  bool suspicious = false;  // fresh back-to-back windows are wanted: up to burst_left of them
  std::string rule;      // evidence, ceiling, jump, non_finite, signs or the rival's; empty = quiet
  double statistic = 0;  // R; D for ceiling, jump and fixed; else the rival's
  double threshold = 0;  // of the statistic
  double x = 0;          // (D − δ0)/s
  double scale_percent = 0;  // s
  double null_percent = 0;   // δ0
  double freedom = 0;        // degrees of freedom behind s
  int64_t burst_left = 0;    // windows of the burst still to come
};

// The alarm rests on its window alone: chance has not been ruled out by the windows before.
bool of_one_window(const GapVerdict& verdict);

// What one window may show before it is an alarm by itself, by what is known now.
double one_window_limit(const GapState& state, const GapSample& sample,
                        const GapSettings& settings);

// R after the newest window, whatever rule raised an alarm; of a rival its running sum or mean.
double gap_total(const GapState& state, const GapSettings& settings);

// Takes one window into account. A D that is not finite is an alarm (rule non_finite) and changes
// nothing that is remembered but its place among the newest. Until the caller restarts or accepts,
// the evidence of an alarm stays and every further bad window is one too.
GapVerdict observe_gap(GapState& state, const GapSample& sample, const GapSettings& settings);

// The next kAskedWindows follow back to back, whatever R is: they tell what one window cannot.
void ask_burst(GapState& state, const GapSettings& settings);
// An alarm was acted upon: evidence begins at 0, what was learned stays.
void restart_gap(GapState& state);
// The gap was found to be bearable: δ0 becomes `percent`, even above the tolerance (not less than
// 0); evidence begins at 0.
void accept_gap(GapState& state, double percent);
// The gap of the newest windows under the plan of the last one, and its standard error, in per
// cent: what accept_gap may be given.
struct GapLevel {
  double mean_percent = 0;
  double error_percent = 0;
  int64_t windows = 0;
};
GapLevel newest_level(const GapState& state, int64_t windows);
// A rollback: the newest `windows` windows were never seen. Exact up to kGapNewestMax since the
// last restart; beyond that the evidence begins at 0. It is right because the windows that are
// measured again are the same ones (a crash) or others whose noise is new (a rollback): in both
// cases the rest is a sequence that counts each window once.
void forget_newest(GapState& state, int64_t windows, const GapSettings& settings);

// δ0 and s for the next window, as it would be compared.
double gap_null_percent(const GapScale& scale, const GapSettings& settings);
double gap_scale_percent(const GapScale& scale, const GapSample& sample,
                         const GapSettings& settings);

struct GapThresholds {
  double alarm = 0;      // A
  double suspicion = 0;  // √A
};
GapThresholds gap_thresholds(const GapSettings& settings);
// Windows of one burst, which ends early when R falls below a quarter of the suspicion. Another one
// follows when R has fallen so far, or has grown fourfold.
inline constexpr int64_t kBurstWindows = 16;
inline constexpr int64_t kAskedWindows = 8;  // of one that was asked for, which does not end early

}  // namespace gnomon::decide
