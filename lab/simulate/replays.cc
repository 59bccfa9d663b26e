// What replays of a simulated run answer.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/philox.h"
#include "controller/decide/plans.h"
#include "lab/simulate/stochastic_run.h"

namespace gnomon::simulate {
namespace {

constexpr uint64_t kFlutterStream = 14, kScoreStream = 15, kBf16Stream = 16;
constexpr size_t kNoisesKept = 64;
constexpr double kScoreSteps = 20;       // that an analysis of a checkpoint costs
constexpr double kOffsetFlutter = 0.05;  // of the offset
constexpr double kBugInOffset = 10;      // steps of a kernel bug's damage that an evaluation shows
constexpr double kScoreNoise = 0.02;     // per cent of the loss

double root(int64_t steps) { return std::sqrt(static_cast<double>(steps) / kSizeSteps); }

// A deviation that belongs to a place and not to the moment: the same replay gives the same bits.
double fixed_gaussian(uint64_t seed, uint64_t stream, uint64_t place) {
  Draw draw(seed ^ (place * 0x9E3779B97F4A7C15u), stream);
  return draw.gaussian();
}

}  // namespace

// In nats, without damage. A replay may look a few steps beyond the run's end.
double StochasticRun::held_out(int64_t at) const {
  return curve_[static_cast<size_t>(std::min(at, model_.steps))];
}

const std::string& StochasticRun::plan_of_replay(const decide::OrderReplay& order,
                                                 const Saved& start) const {
  return order.plan.empty() ? start.plan : order.plan;
}

double StochasticRun::replay_seconds(const decide::OrderReplay& order,
                                     const decide::OpenWindow& window) const {
  const double loading = policy.economics.switch_steps;
  if (order.arm == "scores") return loading + kScoreSteps * model_.speedup;
  double step_seconds = model_.speedup;
  const Saved* start = find_saved(window.start_uri);
  if (!order.arm.starts_with("bf16") && order.arm != "fakequant" && start != nullptr) {
    step_seconds = facts_of(plan_of_replay(order, *start)).step_seconds;
  }
  return loading + static_cast<double>(window.steps) * step_seconds;
}

double StochasticRun::window_noise(const decide::OpenWindow& window) {
  for (const WindowNoise& known : noises_) {
    if (known.attempt == window.attempt && known.start == window.start_step &&
        known.steps == window.steps)
      return known.value;
  }
  const double rho = model_.autocorrelation;
  shape_last_ = rho * shape_last_ + std::sqrt(1 - rho * rho) * shape_.next();
  if (noises_.size() >= kNoisesKept) noises_.erase(noises_.begin());
  noises_.push_back({window.attempt, window.start_step, window.steps, shape_last_});
  return shape_last_;
}

// Triage and audits replay the run's own plan; probes and rescues try another.
static bool repeats_run(const decide::OrderReplay& order) {
  return order.purpose == "triage" || order.arm == "same";
}

// Per cent, of a replay's end. BF16's own part is small; under FP8 a nudged or otherwise different
// replay parts from the run as far as the run parts from BF16.
double StochasticRun::end_noise(const decide::OrderReplay& order,
                                const decide::OpenWindow& window) {
  const double scale = model_.noise_percent * root(window.steps);
  const double own = model_.bf16_noise_share;
  if (order.arm.starts_with("bf16")) {
    const bool plain = order.nudge == 0 && order.arm == "bf16";
    if (!plain) return scale * own * own_noise_.gaussian();
    const auto place = static_cast<uint64_t>(window.start_step * 64 + window.attempt);
    return scale * own * fixed_gaussian(seed_, kBf16Stream, place);
  }
  const double run = std::sqrt(1 - own * own);
  const bool same = order.nudge == 0 && repeats_run(order) && order.arm != "fakequant";
  if (same) return model_.mean_gap_percent + scale * run * window_noise(window);
  return model_.mean_gap_percent + scale * run * shape_.next();
}

double StochasticRun::offset_percent(int64_t at, const PlanFacts& facts, bool fakequant) const {
  double percent = model_.offset_percent * facts.fp8_share;
  double bug = 0;
  for (const Fault& fault : faults_) {
    if (fault.from > at) break;
    if (!fault.acts(at)) continue;
    if (fault.kind == FaultKind::kScaleDrift && !facts.other_recipe) percent *= fault.size;
    if (fault.kind == FaultKind::kKernelBug && (fault.sites & facts.fp8) != 0)
      bug += kBugInOffset * fault.size;
  }
  const auto words = philox(seed_, kFlutterStream, static_cast<uint64_t>(at));
  const double flutter = kOffsetFlutter * (2 * philox_uniform(words[0]) - 1);
  return percent * (1 + flutter) + (fakequant ? 0 : bug);
}

double StochasticRun::hits_again(int64_t at) const {
  double percent = 0;
  for (const Hit& hit : hits_) {
    if (hit.step != at || hit.attempt != attempt) continue;
    if (faults_[hit.fault].kind == FaultKind::kHardware && !mended_[hit.fault])
      percent += hit.damage;
  }
  return percent;
}

double StochasticRun::replay_steps(const decide::OrderReplay& order,
                                   const decide::OpenWindow& window, const PlanFacts& facts,
                                   double total, decide::ReplayFinished& result) {
  const auto count = static_cast<size_t>(window.steps);
  result.steps.reserve(count);
  result.losses.reserve(count);
  result.run_losses.reserve(count);
  const bool fakequant = order.arm == "fakequant";
  for (int64_t at = window.start_step + 1; at <= window.start_step + window.steps; ++at) {
    double loss = clean_loss(at) * (1 + total / 100);
    total *= heal_;
    if (!faults_.empty()) {
      loss += bump(at, facts);
      total += wear(at, facts.fp8, fakequant);
      if (result.on_trainer) total += hits_again(at);
    }
    if (!std::isfinite(loss)) total = NAN;
    result.steps.push_back(at);
    result.losses.push_back(loss);
    result.run_losses.push_back(reported_loss(window.attempt, at));
    result.compared_steps += std::isnan(result.run_losses.back()) ? 0 : 1;
    if (!std::isfinite(loss)) break;
  }
  return total;
}

void StochasticRun::compare_bits(const decide::OrderReplay& order, const decide::OpenWindow& window,
                                 bool lies, decide::ReplayFinished& result) const {
  const bool same =
      order.nudge == 0 && repeats_run(order) && (order.arm == "same" || order.arm == "plan");
  if (!same || lies) {
    result.first_mismatch_step = window.start_step + 1;
    return;
  }
  for (const Hit& hit : hits_) {
    const bool within = hit.attempt == window.attempt && hit.step > window.start_step &&
                        hit.step <= window.start_step + window.steps;
    const bool again =
        result.on_trainer && faults_[hit.fault].kind == FaultKind::kHardware && !mended_[hit.fault];
    if (!within || again) continue;
    if (!result.first_mismatch_step || hit.step < *result.first_mismatch_step) {
      result.first_mismatch_step = hit.step;
      result.first_other_batch_step =
          hit.other_batch ? std::optional<int64_t>(hit.step) : std::nullopt;
    }
  }
}

void StochasticRun::score(const decide::OpenWindow& window, const PlanFacts& facts,
                          decide::ReplayFinished& result) const {
  const int64_t at = window.start_step + window.steps;
  for (size_t i = 0; i < sites_.size(); ++i) {
    const uint64_t site = uint64_t{1} << i;
    if ((facts.fp8 & site) == 0) continue;
    double percent = kScoreNoise * std::abs(fixed_gaussian(seed_, kScoreStream,
                                                           static_cast<uint64_t>(at) * 64 + i));
    for (const Fault& fault : faults_) {
      const bool recent = fault.from <= at && fault.to > window.start_step;
      if (!recent || (fault.sites & site) == 0) continue;
      const bool wears = fault.kind == FaultKind::kNumerics || fault.kind == FaultKind::kKernelBug;
      if (wears) percent += fault.size * kSizeSteps / std::popcount(fault.sites);
      if (fault.kind == FaultKind::kOverflow) percent += 10;
    }
    result.scores.push_back({sites_[i], percent / 100, 0, 25});
  }
}

void StochasticRun::evaluate_ends(const decide::OrderReplay& order,
                                  const decide::OpenWindow& window, const Saved& start,
                                  const PlanFacts& facts, decide::ReplayFinished& result) {
  const double before = held_out(window.start_step) * (1 + start.damage / 100);
  const int64_t end_step = window.start_step + window.steps;
  result.start_loss_bf16 = before;
  const Saved* end = find_saved(window.end_uri);
  if (end == nullptr) return complain(window.end_uri + " was deleted before its replay");
  const PlanFacts& run = facts_of(end->plan);
  // A plan of its own is evaluated under that; BF16 looks at the run's.
  const PlanFacts& evaluated = order.arm == "bf16" ? run : facts;
  const double offset = offset_percent(window.start_step, evaluated, order.arm == "fakequant");
  result.start_loss_plan = before * (1 + offset / 100);
  double percent = end->damage;
  if (run.fp8 != 0) {
    const double own = model_.bf16_noise_share;
    percent += model_.mean_gap_percent * run.fp8_share + model_.noise_percent * root(window.steps) *
                                                             std::sqrt(1 - own * own) *
                                                             window_noise(window);
  }
  result.run_end_loss_bf16 = held_out(end_step) * (1 + percent / 100);
}

decide::ReplayFinished StochasticRun::replay(const decide::OrderReplay& order,
                                             const decide::OpenWindow& window,
                                             const std::string& verifier, bool on_trainer,
                                             bool lies) {
  decide::ReplayFinished result;
  result.replay = order.replay;
  result.window = window.window;
  result.arm = order.arm;
  result.purpose = order.purpose;
  result.verifier = verifier;
  result.on_trainer = on_trainer;
  result.fingerprint_equal = true;
  const Saved* start = find_saved(window.start_uri);
  if (start == nullptr) {
    complain(window.start_uri + " was deleted before its replay");
    return result;
  }
  static const PlanFacts kBf16;
  const bool bf16 = order.arm.starts_with("bf16");
  const PlanFacts& facts = bf16 ? kBf16 : facts_of(plan_of_replay(order, *start));
  if (order.arm == "scores") {
    score(window, facts, result);
    return result;
  }
  const double total = replay_steps(order, window, facts, start->damage, result);
  compare_bits(order, window, lies, result);
  double percent = total + end_noise(order, window);
  if (lies) percent += model_.verifier_error_percent * own_noise_.gaussian();
  const int64_t end_step = window.start_step + window.steps;
  if (std::isfinite(percent)) {
    result.replay_end_loss_bf16 = held_out(end_step) * (1 + percent / 100);
  }
  result.end_hash =
      fmt::format("{}-{}-{}-{}", window.start_uri, end_step, order.arm, lies ? result.replay : 0);
  if (order.evaluate_endpoints) evaluate_ends(order, window, *start, facts, result);
  return result;
}

}  // namespace gnomon::simulate
