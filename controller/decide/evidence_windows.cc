#include "controller/decide/evidence_windows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "controller/decide/containment.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/kept_damage.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr size_t kGenericSpikesMax = 8;
constexpr double kErrorsApart = 3;  // errors of a mean

constexpr double kNoEvidence =
    3;  // about which healthy runs stay; each window of a fault multiplies R

using Gone = std::function<bool(const EvidenceWindow&)>;

// The i-th window from the end is the i-th sample from the end; older windows cannot be taken out.
void align(const GapState& gap, std::vector<EvidenceWindow>& seen) {
  if (seen.size() <= gap.newest.size()) return;
  seen.erase(seen.begin(), seen.end() - static_cast<int64_t>(gap.newest.size()));
}

// Exact: what is left is observed again from before the oldest window that goes.
void exclude(GapState& gap, std::vector<EvidenceWindow>& seen, const GapSettings& settings,
             const Gone& gone) {
  align(gap, seen);
  const auto first = std::find_if(seen.begin(), seen.end(), gone);
  if (first == seen.end()) return;
  const std::vector<EvidenceWindow> later(first, seen.end());
  const std::vector<GapSample> samples(gap.newest.end() - std::ssize(later), gap.newest.end());
  forget_newest(gap, std::ssize(later), settings);
  seen.erase(first, seen.end());
  for (size_t i = 0; i < later.size(); ++i) {
    if (gone(later[i])) continue;
    EvidenceWindow again = later[i];
    observe_gap(gap, samples[i], settings);
    again.statistic = gap_total(gap, settings);
    seen.push_back(again);
  }
}

void exclude_after(GapState& gap, std::vector<EvidenceWindow>& seen, const GapSettings& settings,
                   int64_t base) {
  align(gap, seen);
  if (seen.size() >= kGapNewestMax && seen.front().start_step > base) {
    // Windows that are not known one by one any more are gone, too: the evidence begins anew.
    forget_newest(gap, std::ssize(gap.newest) + 1, settings);
    seen.clear();
    return;
  }
  exclude(gap, seen, settings,
          [base](const EvidenceWindow& window) { return window.end_step > base; });
}

GapSettings settings_of_forks(const Core& core) {
  const std::vector<EvidenceWindow>& seen = core.s.watch.long_seen;
  const int64_t steps = seen.empty() ? 1 : seen.back().end_step - seen.back().start_step;
  return long_gap_settings(core.policy, steps);
}

}  // namespace

void note_generic_spike(State& s, int64_t step) {
  if (s.generic_spike_steps.size() >= kGenericSpikesMax)
    s.generic_spike_steps.erase(s.generic_spike_steps.begin());
  s.generic_spike_steps.push_back(step);
}

std::optional<int64_t> generic_spike_in(const State& s, const WindowState& window) {
  for (int64_t step : s.generic_spike_steps) {
    if (step > window.start.step && step <= window.end_step()) return step;
  }
  return std::nullopt;
}

void record_evidence_window(const GapState& gap, std::vector<EvidenceWindow>& seen,
                            const WindowState& window, double statistic) {
  seen.push_back({window.id, window.start.step, window.end_step(), statistic, window.verifier,
                  window.confirmation == "agreed"});
  align(gap, seen);
}

std::optional<int64_t> evidence_rises_after(const State& s, int64_t alarm, double risen) {
  const std::vector<EvidenceWindow>& seen = s.watch.seen;
  if (seen.size() > s.watch.gap.newest.size()) return std::nullopt;
  const auto raised = std::ranges::find(seen, alarm, &EvidenceWindow::window);
  if (raised == seen.end() || raised == seen.begin()) return std::nullopt;
  if (std::prev(raised)->statistic < risen) return std::nullopt;
  auto last = seen.begin();
  for (auto window = seen.begin(); window != raised; ++window) {
    if (window->statistic <= std::max(kNoEvidence, last->statistic)) last = window;
  }
  return last->end_step;
}

bool evidence_may_rise_after(const State& s, int64_t step) {
  double least = HUGE_VAL;
  for (auto window = s.watch.seen.rbegin(); window != s.watch.seen.rend(); ++window) {
    if (window->statistic >= least) continue;
    if (window->end_step == step) return true;
    if (window->statistic <= kNoEvidence) return false;
    least = window->statistic;
  }
  return false;
}

void forget_spiked(Core& core, int64_t step) {
  Watch& watch = core.s.watch;
  const Gone holds = [step](const EvidenceWindow& window) {
    return window.start_step < step && step <= window.end_step;
  };
  exclude(watch.gap, watch.seen, gap_settings(core.policy), holds);
  exclude(watch.long_gap, watch.long_seen, settings_of_forks(core), holds);
  watch.burst_left = watch.gap.evidence.burst_left;
  forget_probes_of_steps(core.s, step, step);
}

namespace {

struct Chart {
  GapState& gap;
  std::vector<EvidenceWindow>& seen;
  GapSettings settings;
};

std::vector<Chart> charts_of(Core& core) {
  Watch& watch = core.s.watch;
  const GapSettings offsets = offset_settings(
      core.policy,
      offset_allowed(watch, core.policy, static_cast<int64_t>(watch.offset_level_step)));
  return {{watch.gap, watch.seen, gap_settings(core.policy)},
          {watch.long_gap, watch.long_seen, settings_of_forks(core)},
          {watch.offset, watch.offset_seen, offsets},
          {watch.offset_down, watch.offset_down_seen, offsets}};
}

// Learns from the windows that are known one by one alone, and from nothing before them.
void learn_again(Chart& chart) {
  const std::vector<GapSample> samples(chart.gap.newest.end() - std::ssize(chart.seen),
                                       chart.gap.newest.end());
  const double accepted = chart.gap.scale.accepted_percent;
  chart.gap = {};
  if (accepted > 0) accept_gap(chart.gap, accepted);
  for (size_t i = 0; i < samples.size(); ++i) {
    observe_gap(chart.gap, samples[i], chart.settings);
    chart.seen[i].statistic = gap_total(chart.gap, chart.settings);
  }
}

}  // namespace

void forget_window(Core& core, int64_t id) {
  State& s = core.s;
  const Gone gone = [id](const EvidenceWindow& window) { return window.window == id; };
  for (Chart& chart : charts_of(core)) exclude(chart.gap, chart.seen, chart.settings, gone);
  s.watch.burst_left = s.watch.gap.evidence.burst_left;
  const WindowState* window = find_window(s, id);
  if (window == nullptr) return;
  std::erase_if(s.quiet_ends, [&](const QuietEnd& quiet) {
    return quiet.end.step == window->end_step() && quiet.start_step == window->start.step;
  });
}

void forget_verifier(Core& core, const std::string& verifier) {
  State& s = core.s;
  const Gone gone = [&](const EvidenceWindow& window) { return window.verifier == verifier; };
  const VerifierRecord* record = find_record(s, verifier);
  const int64_t known = std::ranges::count_if(s.watch.seen, gone);
  const bool older = record != nullptr && record->windows > known;
  for (Chart& chart : charts_of(core)) {
    exclude(chart.gap, chart.seen, chart.settings, gone);
    if (older) learn_again(chart);
  }
  forget_kept(s.watch.stability, verifier);
  if (older) s.watch.instrument.scale_agreed = s.watch.instrument.scale_recorded = 0;
  s.watch.burst_left = s.watch.gap.evidence.burst_left;
}

void forget_evidence_after(Core& core, int64_t base) {
  for (Chart& chart : charts_of(core)) exclude_after(chart.gap, chart.seen, chart.settings, base);
}

std::string rests_on(const Core& core, const WindowState& window) {
  const State& s = core.s;
  const std::vector<EvidenceWindow>& seen = s.watch.seen;
  if (window.kind != "shadow" || seen.size() > s.watch.gap.newest.size()) return {};
  // That rule asks itself what others have measured.
  if (is_kept(window)) return {};
  const auto after = evidence_rises_after(s, window.id, risen_evidence(core.policy));
  const double scale = std::sqrt(s.watch.gap.scale.variance);
  const double limit = window.judged ? window.judged->null_percent : 0;
  const size_t older = s.watch.gap.newest.size() - seen.size();
  struct Sum {
    double d = 0, n = 0;
  };
  std::map<std::string, Sum> unconfirmed;
  Sum all;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (after && seen[i].start_step < *after) continue;
    const double d = s.watch.gap.newest[older + i].d_percent;
    if (!std::isfinite(d)) continue;
    all.d += d;
    all.n += 1;
    if (seen[i].confirmed || seen[i].verifier.empty()) continue;
    unconfirmed[seen[i].verifier].d += d;
    unconfirmed[seen[i].verifier].n += 1;
  }
  for (const auto& [verifier, own] : unconfirmed) {
    const double rest = all.n - own.n;
    if (rest < 1) return verifier;
    const double difference = own.d / own.n - (all.d - own.d) / rest;
    const bool apart = difference > kErrorsApart * scale * std::sqrt(1 / own.n + 1 / rest);
    if (apart && (all.d - own.d) / rest <= limit) return verifier;
  }
  return {};
}

}  // namespace gnomon::decide
