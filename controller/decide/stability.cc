#include "controller/decide/stability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/decide/health.h"
#include "controller/decide/kept_damage.h"
#include "controller/decide/window_lengths.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr double kRisePercent = 100 * kSpikeRiseMin;  // of BF16's held-out loss over a window
constexpr double kMendsPercent = 0.5;                 // a fall over the window by which it mends
constexpr double kPartsPercent = 0.5;                 // BF16 from itself, by a rounding error alone
constexpr size_t kSignsMin = 3;                       // of different windows,
constexpr int64_t kSignWindows = 10;                  // within so many window distances
constexpr size_t kSignsMax = 16;
constexpr int64_t kCalmWindows = 8;  // in a row: it is over

int64_t distance(const Core& core) {
  return std::max<int64_t>(1, window_lengths(core.s, core.policy).every);
}

void record_unstable(Core& core, const std::string& seen) {
  Stability& stability = core.s.watch.stability;
  json::array steps;
  for (int64_t step : stability.signs) steps.emplace_back(step);
  core.record(
          "verdict",
          fmt::format(
              "Training is unstable in both precisions since step {}: {}. The learning "
              "rate, the data, or damage that the weights keep: no window that counts shows that "
              "FP8 adds more than is tolerated. Nothing is rolled back. A person should "
              "lower the learning rate or look at the data.",
              *stability.unstable_since, seen),
          {{"since_step", *stability.unstable_since},
           {"signs", std::move(steps)},
           {"lowest_bf16_loss", number(stability.lowest)}})
      .verdict = "unstable_training";
}

// BF16 loses ground at this step; `at_once`: it is not even finite.
void note_sign(Core& core, int64_t step, bool at_once, const std::string& seen) {
  Stability& stability = core.s.watch.stability;
  stability.calm = 0;
  const int64_t apart = distance(core);
  const bool known = !stability.signs.empty() && step - stability.signs.back() < apart;
  if (!known) stability.signs.push_back(step);
  std::erase_if(stability.signs, [&](int64_t sign) { return sign + kSignWindows * apart < step; });
  if (stability.signs.size() > kSignsMax) stability.signs.erase(stability.signs.begin());
  if (stability.unstable_since || core.s.ended) return;
  if (!at_once && stability.signs.size() < kSignsMin) return;
  stability.unstable_since = at_once ? step : stability.signs.front();
  record_unstable(core, at_once ? seen
                                : fmt::format("{} times BF16 lost ground too, the last time so: {}",
                                              stability.signs.size(), seen));
}

void note_calm(Core& core, int64_t step) {
  Stability& stability = core.s.watch.stability;
  stability.calm += 1;
  if (!stability.unstable_since || stability.calm < kCalmWindows) return;
  core.record("verdict",
              fmt::format("Training is stable again at step {}: over {} windows in a row BF16 lost "
                          "no ground. It was unstable since step {}.",
                          step, stability.calm, *stability.unstable_since),
              {{"since_step", *stability.unstable_since}, {"step", step}})
      .verdict = "stable_training";
  stability.unstable_since.reset();
  stability.signs.clear();
}

void note_lowest(Core& core, double loss, int64_t step) {
  Stability& stability = core.s.watch.stability;
  if (stability.lowest > 0 && loss >= stability.lowest) return;
  stability.lowest = loss;
  stability.lowest_step = step;
  restart_kept(core, step);
}

// FP8 is no better than BF16: chance parts runs by more than one window may show, or the verifier
// computes wrongly.
bool too_good(const Core& core, const WindowState& window) {
  return window.kind == "shadow" && window.measured &&
         window.measured->d_percent.value_or(0) < -core.policy.detector.ceiling_percent;
}

}  // namespace

void note_bf16(Core& core, const WindowState& window, const ReplayFinished& replay) {
  Stability& stability = core.s.watch.stability;
  // A fault that was found and not answered may be what BF16 starts from.
  if (window.kind != "shadow" || core.s.fault_reported || replay.first_other_batch_step) return;
  if (core.s.watch.instrument.broken || end_left_out(replay, window.steps)) return;
  const auto& start = replay.start_loss_bf16;
  const auto& end = replay.replay_end_loss_bf16;
  if (!start || !std::isfinite(*start) || *start <= 0) return;
  const bool ends = end && std::isfinite(*end) && *end > 0;
  const int64_t step = window.end_step();
  const std::string of_window = fmt::format("in steps {}–{}", window.start.step, step);
  if (!ends) return note_diverged(core, window, false);
  note_lowest(core, *start, window.start.step);
  const double rise = 100 * (*end - *start) / *start;
  const double over = 100 * (*end - stability.lowest) / stability.lowest;
  // Where nobody measured what FP8 adds, BF16's own loss says nothing of both precisions.
  if (!window.measured || !window.measured->d_percent) return note_lowest(core, *end, step);
  const double d = *window.measured->d_percent;
  // What windows like this one have added since BF16's lowest may be what BF16 starts from.
  const double windows_since = static_cast<double>(step - stability.lowest_step) /
                               static_cast<double>(std::max<int64_t>(1, window.steps));
  const bool by_fp8 = explains_rise(core, over) ||
                      (d > core.policy.detector.tolerance_percent && d * windows_since >= over / 2);
  note_lowest(core, *end, step);
  const std::string over_words =
      fmt::format("the held-out loss of BF16 was {} over its lowest {}", percent(over), of_window);
  if (over > kOverPercent && note_overfitting(core, stability.lowest, over_words)) return;
  if (rise > kRisePercent && d < rise) {
    return note_sign(core, step, false,
                     fmt::format("its held-out loss rose by {} {}", percent(rise), of_window));
  }
  // From weights that FP8 has damaged BF16 mends; from what diverges it does not.
  if (over > kOverPercent && rise > -kMendsPercent && d < over / 2 && !by_fp8) {
    return note_sign(core, step, false,
                     fmt::format("its held-out loss was {} over the lowest so far, and did not "
                                 "fall, {}",
                                 percent(over), of_window));
  }
  const WindowState* open = find_window(core.s, window.id);
  // A second source is asked about it.
  if (too_good(core, window)) {
    if (open != nullptr && !open->confirm_pending) note_parted(core, window);
    return;
  }
  // An alarm is no calm window, whatever becomes of it.
  if (open == nullptr || !(open->judged && open->judged->alarm)) note_calm(core, step);
}

void note_calm_in_bf16(Core& core, int64_t start, int64_t end) {
  const std::vector<int64_t>& signs = core.s.watch.stability.signs;
  if (std::ranges::none_of(signs, [&](int64_t sign) { return start < sign && sign <= end; }))
    note_calm(core, end);
}

void note_diverged(Core& core, const WindowState& window, bool two_agree) {
  if (core.s.fault_reported || core.s.watch.instrument.broken) return;
  note_sign(core, window.end_step(), two_agree,
            fmt::format("a BF16 replay is not finite in steps {}–{}", window.start.step,
                        window.end_step()));
}

void note_parted(Core& core, const WindowState& window) {
  if (!too_good(core, window)) return;
  note_sign(
      core, window.end_step(), false,
      fmt::format("chance parted the precisions by {}, BF16 being the worse, in steps {}–{}",
                  percent(-*window.measured->d_percent), window.start.step, window.end_step()));
}

void forget_stability_after(State& s, int64_t base) {
  Stability& stability = s.watch.stability;
  if (stability.lowest_step > base) {  // it was so low in steps that are undone
    stability.lowest = 0;
    stability.kept = {};
  }
  if (stability.kept.end_step > base) {
    const double deviation = stability.kept.deviation;
    stability.kept = {.end_step = base, .deviation = deviation, .shares = {}};
  }
  stability.calm = 0;
  std::erase_if(stability.signs, [&](int64_t sign) { return sign > base; });
  if (stability.unstable_since && *stability.unstable_since > base)
    stability.unstable_since.reset();
}

void note_chance(Core& core) {
  const Case& investigation = *core.s.investigation;
  const auto& reference = investigation.evidence.measured.reference;
  if (!reference || investigation.evidence.finding) return;
  double least = *reference, most = *reference;
  for (const TriageAnswer& answer : investigation.evidence.answers) {
    if (answer.kind != "bf16_nudged" || !answer.end_loss) continue;
    least = std::min(least, *answer.end_loss);
    most = std::max(most, *answer.end_loss);
  }
  const double parts = 100 * (most - least) / least;
  const WindowState& window = *find_window(core.s, investigation.window);
  if (parts <= kPartsPercent) return;
  note_sign(core, window.end_step(), !std::isfinite(most),
            fmt::format("its replays of steps {}–{} ended {} apart by a rounding error",
                        window.start.step, window.end_step(), percent(parts)));
}

void note_shared_spike(Core& core, const SpikeFinding& finding) {
  const bool finite = finding.kind != "non_finite";
  note_sign(core, finding.step, !finite,
            finite ? fmt::format("step {} spiked in BF16, too", finding.step)
                   : fmt::format("step {} is not finite in BF16 either", finding.step));
}

}  // namespace gnomon::decide
