#include "controller/decide/gap_detector.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "controller/decide/gap_evalues.h"
#include "controller/decide/gap_rivals.h"

namespace gnomon::decide {
namespace {

constexpr double kDeviationMin = 1e-9;         // per cent: s is never less
constexpr double kPriorWeight = 1;             // of the prior's s², in squares
constexpr double kWeightMax = 60;              // squares that s² remembers
constexpr double kFreedomPerSquare = 2.0 / 3;  // overlapping differences (von Neumann 1941)
constexpr double kSquareMax = 25;       // of a square, in s²: one window cannot blind the detector
constexpr double kQuietEvidence = 100;  // R up to which windows are learned from
constexpr double kBaselineErrors = 2;   // standard errors of the mean that δ0 lies above it
constexpr double kPlanFreedom = 4;      // what remains of s at a change of plan
constexpr double kCarryError = 0.5;     // of the logarithm of a carried scale's change
constexpr double kCarryMax = 16;        // largest change of the scale by cadence and batch size
constexpr double kCarriedBelow = 1;    // deviations below δ0 that the next window is compared with
constexpr double kEvidenceMax = 1e30;  // of one R_j
constexpr double kBurstEnd = 0.25;     // of the suspicion: R below it ends a burst
constexpr double kBurstAgain = 4;      // R must grow so much before it asks for another

bool eprocess(const GapSettings& settings) { return !is_rival(settings.kind); }

bool symmetric(const GapSettings& settings) { return settings.noise != "any"; }

// How much the noise changes by a change of the window's length and the batch size: the divergence
// of two runs grows as the root of the steps, and its share that is noise falls with the tokens.
double carry_ratio(const GapScale& scale, const GapSample& sample) {
  double squared = 1;
  if (scale.steps > 0 && sample.steps > 0) squared *= sample.steps / scale.steps;
  if (scale.tokens_per_step > 0 && sample.tokens_per_step > 0) {
    squared *= scale.tokens_per_step / sample.tokens_per_step;
  }
  return std::clamp(std::sqrt(squared), 1 / kCarryMax, kCarryMax);
}

void keep_freedom(GapScale& scale, double freedom) {
  if (scale.freedom <= freedom) return;
  scale.weight *= freedom / scale.freedom;
  scale.freedom = freedom;
}

void begin_baseline(GapScale& scale) {
  scale.baseline_windows = 0;
  scale.baseline_mean = 0;
  scale.null_percent.reset();
}

void change_cadence(GapScale& scale, double ratio, const GapSettings& settings) {
  scale.variance *= ratio * ratio;
  scale.baseline_mean *= ratio;
  if (scale.null_percent) {
    const double cap = std::max(settings.tolerance_percent, scale.accepted_percent);
    *scale.null_percent = std::min(cap, *scale.null_percent * std::max(1.0, ratio));
  }
  if (scale.freedom > 0) {
    const double error = kCarryError * std::log(ratio);
    keep_freedom(scale, 1 / (1 / scale.freedom + 2 * error * error));
  }
  scale.last_d.reset();
}

// True when the plan is another one than the windows' before.
bool adopt(GapScale& scale, const GapSample& sample, const GapSettings& settings) {
  bool changed = false;
  if (scale.weight == 0) {
    scale.variance = settings.prior_scale_percent * settings.prior_scale_percent;
    scale.weight = kPriorWeight;
  } else {
    const double ratio = carry_ratio(scale, sample);
    if (ratio != 1) change_cadence(scale, ratio, settings);
    if (scale.plan_version != sample.plan_version) {
      changed = true;
      keep_freedom(scale, kPlanFreedom);
      scale.last_d.reset();
      scale.accepted_percent = 0;
      begin_baseline(scale);
    }
  }
  if (sample.steps > 0) scale.steps = sample.steps;
  if (sample.tokens_per_step > 0) scale.tokens_per_step = sample.tokens_per_step;
  scale.plan_version = sample.plan_version;
  return changed;
}

void learn_square(GapScale& scale, double square) {
  scale.variance += (square - scale.variance) / (scale.weight + 1);
  scale.weight += 1;
  scale.freedom += kFreedomPerSquare;
  if (scale.weight <= kWeightMax) return;
  scale.freedom *= kWeightMax / scale.weight;
  scale.weight = kWeightMax;
}

// `used` is the scale that the window was judged by.
void learn(GapScale& scale, const GapSample& sample, double used, const GapSettings& settings) {
  const double d_percent = bounded(sample.d_percent);
  if (scale.last_d) {
    const double difference = d_percent - *scale.last_d;
    learn_square(scale, std::min(difference * difference / 2, kSquareMax * used * used));
  }
  scale.last_d = d_percent;
  if (scale.null_percent || settings.burn_in_windows <= 0) return;
  scale.baseline_windows += 1;
  scale.baseline_mean +=
      (d_percent - scale.baseline_mean) / static_cast<double>(scale.baseline_windows);
  if (scale.baseline_windows < settings.burn_in_windows) return;
  const double s = gap_scale_percent(scale, sample, settings);
  const double error = s / std::sqrt(static_cast<double>(scale.baseline_windows));
  scale.null_percent = std::clamp(scale.baseline_mean + kBaselineErrors * error, 0.0,
                                  std::max(settings.tolerance_percent, scale.accepted_percent));
}

struct Reading {
  bool alarm = false;
  bool suspicious = false;
  bool quiet = true;
  const char* rule = "";
  double statistic = 0;
  double threshold = 0;
};

// `total` is R after the window. Returns true when fresh windows are wanted.
bool observe_burst(GapEvidence& evidence, double total, const GapThresholds& limits) {
  const bool asked = evidence.burst_left > 0 && evidence.burst_level == 0;
  if (total < kBurstEnd * limits.suspicion && !asked) {
    evidence.burst_left = 0;
    evidence.burst_level = 0;
    return false;
  }
  if (evidence.burst_left > 0) {
    evidence.burst_left -= 1;
    return false;
  }
  if (total < std::max(limits.suspicion, evidence.burst_level)) return false;
  evidence.burst_left = kBurstWindows;
  evidence.burst_level = kBurstAgain * total;
  return true;
}

Reading observe_evidence(GapEvidence& evidence, const GapEvalues& e, const GapSettings& settings) {
  evidence.sums.resize(kGapMembers, 0.0);
  for (size_t j = 0; j < kGapMembers; ++j) {
    evidence.sums[j] = std::min((1 + evidence.sums[j]) * e[j], kEvidenceMax);
  }
  const GapThresholds limits = gap_thresholds(settings);
  Reading reading;
  reading.statistic = gap_mixture(evidence.sums.data(), symmetric(settings));
  reading.threshold = limits.alarm;
  reading.alarm = reading.statistic >= limits.alarm;
  reading.quiet = reading.statistic <= kQuietEvidence;
  reading.rule = reading.alarm ? "evidence" : "";
  if (reading.alarm) {
    evidence.burst_left = 0;
  } else if (settings.burst) {
    reading.suspicious = observe_burst(evidence, reading.statistic, limits);
  }
  return reading;
}

// By how many s the null's mean for this window lies above δ0, because the window before did.
double carried_over(const GapEvidence& evidence, const GapVerdict& verdict,
                    const GapSettings& settings) {
  if (!evidence.previous_d) return 0;
  const double before = (*evidence.previous_d - verdict.null_percent) / verdict.scale_percent;
  return settings.correlation * std::max(-kCarriedBelow, before);
}

Reading observe_by_kind(GapEvidence& evidence, const GapScale& scale, const GapSample& sample,
                        const GapVerdict& verdict, const GapSettings& settings) {
  double x = verdict.x;
  if (eprocess(settings)) {
    const double confidence = scale_confidence(scale.freedom);
    const bool known = std::isfinite(confidence);
    x -= carried_over(evidence, verdict, settings);
    evidence.previous_d = bounded(sample.d_percent);
    const double y = known ? x / confidence : 0;
    return observe_evidence(evidence, gap_evalues(x, y, known, symmetric(settings)), settings);
  }
  const RivalReading rival = observe_rival(
      evidence, sample.d_percent, x, settings.burn_in_windows > 0 && !scale.null_percent, settings);
  Reading reading;
  reading.alarm = rival.alarm;
  reading.quiet = rival.quiet;
  reading.rule = rival.alarm ? settings.kind.c_str() : "";
  reading.statistic = rival.statistic;
  reading.threshold = rival.threshold;
  return reading;
}

// Infinite while the scale is not known.
double jump_limit(const GapScale& scale, const GapSample& sample, const GapSettings& settings) {
  if (settings.jump_deviations <= 0 || !eprocess(settings)) return HUGE_VAL;
  const double jump = settings.jump_deviations * scale_confidence(scale.freedom) *
                      gap_scale_percent(scale, sample, settings);
  return std::max(settings.tolerance_percent, gap_null_percent(scale, settings) + jump);
}

void alarm_alone(GapVerdict& verdict, const char* rule, double d_percent, double limit) {
  if (verdict.alarm || !(d_percent > limit)) return;
  verdict.alarm = true;
  verdict.rule = rule;
  verdict.statistic = d_percent;
  verdict.threshold = limit;
}

GapVerdict step(GapScale& scale, GapEvidence& evidence, const GapSample& sample,
                const GapSettings& settings) {
  GapVerdict verdict;
  if (!std::isfinite(sample.d_percent)) {
    verdict.alarm = true;
    verdict.rule = "non_finite";
    verdict.statistic = sample.d_percent;
    verdict.burst_left = evidence.burst_left;
    return verdict;
  }
  if (adopt(scale, sample, settings)) evidence = {};
  verdict.null_percent = gap_null_percent(scale, settings);
  verdict.scale_percent = gap_scale_percent(scale, sample, settings);
  verdict.freedom = scale.freedom;
  verdict.x = (bounded(sample.d_percent) - verdict.null_percent) / verdict.scale_percent;
  const double jump = jump_limit(scale, sample, settings);
  const Reading reading = observe_by_kind(evidence, scale, sample, verdict, settings);
  verdict.alarm = reading.alarm;
  verdict.suspicious = reading.suspicious;
  verdict.rule = reading.rule;
  verdict.statistic = reading.statistic;
  verdict.threshold = reading.threshold;
  verdict.burst_left = evidence.burst_left;
  alarm_alone(verdict, "ceiling", sample.d_percent, settings.ceiling_percent);
  alarm_alone(verdict, "jump", sample.d_percent, jump);
  if (reading.quiet && !verdict.alarm) {
    learn(scale, sample, verdict.scale_percent, settings);
  } else {
    scale.last_d.reset();
  }
  return verdict;
}

}  // namespace

double gap_null_percent(const GapScale& scale, const GapSettings& settings) {
  return scale.null_percent.value_or(std::max(settings.tolerance_percent, scale.accepted_percent));
}

double gap_scale_percent(const GapScale& scale, const GapSample& sample,
                         const GapSettings& settings) {
  const double learned =
      scale.weight > 0 ? std::sqrt(scale.variance) : settings.prior_scale_percent;
  const double floor = std::isfinite(sample.floor_percent) ? sample.floor_percent : 0;
  const double most = sample.most_percent > 0 ? sample.most_percent : HUGE_VAL;
  return std::max(std::min(std::max(learned, floor), most), kDeviationMin);
}

GapThresholds gap_thresholds(const GapSettings& settings) {
  const double windows = settings.windows_between_false_alarms;
  return {windows, std::sqrt(windows)};
}

bool of_one_window(const GapVerdict& verdict) {
  return verdict.rule == "ceiling" || verdict.rule == "jump" || verdict.rule == "non_finite";
}

double one_window_limit(const GapState& state, const GapSample& sample,
                        const GapSettings& settings) {
  return std::min(settings.ceiling_percent, jump_limit(state.scale, sample, settings));
}

double gap_total(const GapState& state, const GapSettings& settings) {
  if (!eprocess(settings)) return state.evidence.rival;
  const std::vector<double>& sums = state.evidence.sums;
  return sums.empty() ? 0 : gap_mixture(sums.data(), symmetric(settings));
}

GapVerdict observe_gap(GapState& state, const GapSample& sample, const GapSettings& settings) {
  if (state.newest.size() >= kGapNewestMax) {
    step(state.scale_before, state.evidence_before, state.newest.front(), settings);
    state.newest.erase(state.newest.begin());
  }
  state.newest.push_back(sample);
  return step(state.scale, state.evidence, sample, settings);
}

void ask_burst(GapState& state, const GapSettings& settings) {
  if (!eprocess(settings) || !settings.burst) return;
  state.evidence.burst_left = kAskedWindows;
  state.evidence.burst_level = 0;
}

void restart_gap(GapState& state) {
  state.evidence = {};
  state.evidence_before = {};
  state.scale_before = state.scale;
  state.newest.clear();
}

void accept_gap(GapState& state, double percent) {
  state.scale.accepted_percent = std::isfinite(percent) ? std::max(percent, 0.0) : 0.0;
  state.scale.null_percent = state.scale.accepted_percent;
  restart_gap(state);
}

GapLevel newest_level(const GapState& state, int64_t windows) {
  GapLevel level;
  double squares = 0;
  for (auto sample = state.newest.rbegin(); sample != state.newest.rend(); ++sample) {
    if (level.windows >= windows || sample->plan_version != state.newest.back().plan_version) break;
    if (!std::isfinite(sample->d_percent)) continue;
    level.windows += 1;
    const double delta = sample->d_percent - level.mean_percent;
    level.mean_percent += delta / static_cast<double>(level.windows);
    squares += delta * (sample->d_percent - level.mean_percent);
  }
  if (level.windows >= 2) {
    const auto n = static_cast<double>(level.windows);
    level.error_percent = std::sqrt(squares / (n - 1) / n);
  }
  return level;
}

void forget_newest(GapState& state, int64_t windows, const GapSettings& settings) {
  if (windows <= 0) return;
  const auto known = static_cast<int64_t>(state.newest.size());
  std::vector<GapSample> left = std::move(state.newest);
  left.resize(static_cast<size_t>(std::max<int64_t>(known - windows, 0)));
  state.newest.clear();
  state.scale = state.scale_before;
  state.evidence = windows > known ? GapEvidence{} : state.evidence_before;
  state.evidence_before = state.evidence;
  state.scale.last_d = windows > known ? std::nullopt : state.scale.last_d;
  state.scale_before = state.scale;
  for (const GapSample& sample : left) {
    state.newest.push_back(sample);
    step(state.scale, state.evidence, sample, settings);
  }
}

}  // namespace gnomon::decide
