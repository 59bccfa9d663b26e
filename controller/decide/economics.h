// What verified FP8 is worth: the expected time of a run that trains in FP8, casts a BF16 shadow
// every so often, is now and then damaged, rolls back and goes on, as a function of how often it is
// verified. Pure arithmetic. docs/economics.md has the model and the formulas.
#pragma once

#include <cstdint>
#include <string>

namespace gnomon::decide {

// A run before it happens. Times are in units of one FP8 step, so "30 steps" of switching are the
// time in which 30 FP8 steps would have run.
struct RunModel {
  double speedup = 1.35;     // s: time of a BF16 step over that of an FP8 step
  double window_steps = 25;  // K: steps of a window
  double switch_steps = 30;  // c: snapshot, reload and switch of one verification
  // m: whole windows with the fault in them until the alarm, that of the alarm included (mean)
  double delay_windows = 2;
  double hold_steps = 500;    // H: steps in BF16 after the lost ones are redone
  double restart_steps = 30;  // R: rollback, triage and attribution of one fault
  // A: mean windows between false alarms; a false alarm is paid like a true one. Infinity: none.
  double windows_between_false_alarms = 10'000;
  // g: devices that only verify, as a share of the training devices. 0: no such devices, the
  // training devices verify themselves and training waits.
  double spare_share = 0;
  double spare_price = 1;  // of such a device, as a share of a training device's; 0: idle anyway
};

// Hazard: faults of FP8 per FP8 step, in [0, 1]. Every function below throws ConfigError naming the
// quantity and what is accepted when a model, a hazard or a cadence is out of range.
void check_model(const RunModel& model);
void check_hazard(double hazard);

// What one useful step costs beyond the FP8 step itself, in FP8 steps of the training devices. A
// useful step is one whose result is kept.
struct StepCost {
  double verification = 0;  // while training waits
  double spare = 0;         // the other devices
  double lost = 0;          // steps that were rolled back
  double bf16 = 0;          // BF16's longer steps, redoing and holding
  double restart = 0;
  double total() const { return 1 + verification + spare + lost + bf16 + restart; }
};

// The expectation over renewals: exact for faults at a constant hazard (a Poisson process in FP8
// steps), a false alarm in one of A healthy windows by chance, rollback to the end of the last
// window that ended before the fault, and windows that see nothing of a fault that began in them.
// `every` (N) is the number of steps from one window's start to the next, at least every_min().
StepCost step_cost(const RunModel& model, double every, double hazard);
// Speed of the run over BF16 without any verification, for the same devices paid.
double net_speedup(const RunModel& model, double every, double hazard);

// The same to first order in the hazard, without the products of hazard and V/N; what the closed
// forms below rest on.
//   τ = (1 + g·p)·{1 + V/N + λ[s(mN + K + L) + (s−1)H + R] + [s(N + L) + (s−1)H + R]/(A·N)}
// V = sK + c on the training devices and 0 on spare ones, L = sK/g + c on spare ones and 0 else.
double first_order_step_cost(const RunModel& model, double every, double hazard);

// The shortest possible distance of windows: K, and as long as spare devices need for one window.
double every_min(const RunModel& model);
// max(every_min, √(W/(λ·s·m))) with W = V + [sL + (s−1)H + R]/A; infinite for a hazard of 0.
double best_every_closed_form(const RunModel& model, double hazard);
// The minimum of step_cost over [every_min, every_max], to a relative 1e-6 in `every`.
double best_every(const RunModel& model, double hazard, double every_max = 1e9);

// The hazard above which FP8 is not worth it at any cadence: net_speedup at best_every is below
// net_needed, which is above 1 when something else has to be paid, a loss gap for instance. 0 when
// FP8 does not pay even without faults, 1 (the largest there is) when it always does.
double break_even_hazard(const RunModel& model, double net_needed = 1, double every_max = 1e9);
// On training devices, to first order: the root of 1 + s/A + 2√(λsmW) + λ(sK + R) = s, with W
// without the hold, which in BF16 costs nothing over BF16. 0 when there is none.
double break_even_hazard_closed_form(const RunModel& model);

// The share of spare devices with the best net speed-up at this hazard, each verifying without a
// pause: g = √(a/B), a = λs²(m+1)K, B = 1 + λ[s((m+1)c + K) + (s−1)H + R], everything to first
// order; at most 1. The model's own share is not looked at.
double best_spare_share(const RunModel& model, double hazard);

// What a loss gap is worth in compute: with L ∝ C^−exponent, a run whose loss is higher by a share
// D needs (1 + D)^(1/exponent) times the compute to get where it should be. A gap below 0 earns
// nothing: it is noise. The exponent 0.050 is Kaplan et al. 2020 (arXiv 2001.08361), equation 1.3.
inline constexpr double kLossComputeExponent = 0.050;
double compute_factor(double loss_gap_percent, double exponent = kLossComputeExponent);

// "1/20k", "1/1.5M", "0": a hazard as people write it.
std::string hazard_in_words(double hazard);

}  // namespace gnomon::decide
