#include "controller/decide/instrument.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "controller/decide/case.h"
#include "controller/decide/containment.h"
#include "controller/decide/directives.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/plans.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kHistoryMin = 3;       // checks before one can be called out of the ordinary
constexpr double kDifferenceMin = 0.01;  // per cent: from a history of nothing one can still learn
constexpr int64_t kUnansweredMax = 3;    // checks, before they are no more frequent than others
constexpr double kHistoryWeight = 0.1;   // of a new check once there are more than ten

json::object evidence_of(const WindowState& window, const InstrumentState& instrument) {
  return {{"window", window.id},
          {"difference_percent", number(instrument.last_percent)},
          {"history_percent", number(std::sqrt(instrument.mean_square))},
          {"checks", instrument.checks}};
}

// One check cannot blind the detector, whose scale is never under this history: it counts as no
// more than what would be out of the ordinary, an early one as no more than the ceiling.
void learn(Core& core, double difference, bool two_agree) {
  InstrumentState& instrument = core.s.watch.instrument;
  // The word of one alone may not blind the detector.
  if (!two_agree)
    difference = std::min(std::abs(difference), core.policy.detector.prior_scale_percent);
  const double most = instrument.checks >= kHistoryMin
                          ? core.policy.instrument.ratio * std::sqrt(instrument.mean_square)
                          : core.policy.detector.ceiling_percent;
  difference = std::min(std::abs(difference), std::max(most, kDifferenceMin));
  instrument.checks += 1;
  const double weight =
      std::max(kHistoryWeight, 1.0 / static_cast<double>(std::max<int64_t>(1, instrument.checks)));
  instrument.mean_square += weight * (difference * difference - instrument.mean_square);
}

void record_sound_again(Core& core, const WindowState& window) {
  InstrumentState& instrument = core.s.watch.instrument;
  if (!instrument.broken || instrument.disputed) return;
  instrument.broken = false;
  RecordDecision& decision =
      core.record("instrument",
                  fmt::format("{}: the instrument is sound again; gaps are judged from now on.",
                              window_name(window)),
                  evidence_of(window, instrument));
  decision.window = window.id;
  restart_gap(core.s.watch.gap);
}

void note_unanswered(Core& core, const std::string& why) {
  InstrumentState& instrument = core.s.watch.instrument;
  instrument.unanswered += 1;
  if (instrument.unanswered != kUnansweredMax) return;
  core.record("instrument",
              fmt::format("{} checks of the instrument in a row gave no answer that can be used "
                          "({}). How far two BF16 replays part is not known here. They are asked "
                          "for every {} windows only from now on.",
                          kUnansweredMax, why, core.policy.instrument.every),
              {{"unanswered", instrument.unanswered}, {"why", why}});
}

// What the detector's scale is never under is learned from what two sources agree upon.
bool order_elsewhere(Core& core, WindowState& window, const std::string& verifier) {
  State& s = core.s;
  if (!others_believed(s, verifier) || s.ended || window.witnesses.empty()) return false;
  window.instrument_pending = true;
  OrderReplay wanted;
  wanted.arm = "bf16-perturbed";
  wanted.priority = kPriorityInstrument;
  wanted.avoid = verifier;
  order(core, window, "instrument_elsewhere", 0, std::move(wanted));
  return true;
}

}  // namespace

void mend_instrument_in_bf16(Core& core) {
  InstrumentState& instrument = core.s.watch.instrument;
  if (!instrument.broken) return;
  instrument.broken = instrument.disputed = false;
  restart_gap(core.s.watch.gap);
  core.record("instrument",
              "The run is in BF16: no gap is judged, and what was disputed about gaps is not asked "
              "any more. FP8 is measured anew by probes.",
              {});
}

bool instrument_due(const Core& core) {
  const Policy::Instrument& policy = core.policy.instrument;
  const InstrumentState& instrument = core.s.watch.instrument;
  const bool regular = policy.every > 0;
  const bool soon = instrument.broken || (regular && instrument.checks == 0);
  return (regular && instrument.windows_since >= policy.every) ||
         (soon && instrument.unanswered < kUnansweredMax);
}

void order_instrument(Core& core, WindowState& window) {
  core.s.watch.instrument.windows_since = 0;
  window.instrument_pending = true;
  order(core, window, "bf16-perturbed", "instrument", "", false, kPriorityInstrument);
}

void handle_instrument(Core& core, int64_t window_id, const ReplayFinished& replay) {
  InstrumentState& instrument = core.s.watch.instrument;
  WindowState& window = *find_window(core.s, window_id);
  window.instrument_pending = false;
  const bool usable = window.measured && window.measured->reference &&
                      window.outcome != "skipped" && !generic_spike_in(core.s, window) &&
                      replay.replay_end_loss_bf16 && std::isfinite(*replay.replay_end_loss_bf16);
  if (replay.replay_end_loss_bf16) {
    instrument.unanswered = 0;
  } else {
    note_unanswered(core, "the held-out loss at the replay's end is missing");
  }
  if (!usable) return finish_window(core, window_id);
  const double reference = *window.measured->reference;
  const double difference = 100 * (*replay.replay_end_loss_bf16 - reference) / reference;
  instrument.last_percent = difference;
  const double usual = std::sqrt(instrument.mean_square);
  const bool out_of_order = instrument.checks >= kHistoryMin &&
                            std::abs(difference) > core.policy.instrument.ratio * usual;
  if (!out_of_order && (!instrument.broken || instrument.disputed)) {
    if (order_elsewhere(core, window, replay.verifier)) return;
    learn(core, difference, false);
    return finish_window(core, window_id);
  }
  if (core.s.ended) return finish_window(core, window_id);  // nothing is ordered any more
  // The same replay once more: equal bits, or the machine that measures cannot be trusted.
  window.instrument_pending = true;
  order(core, window, "bf16", "instrument_again", "", false, kPriorityTriage);
}

void handle_instrument_elsewhere(Core& core, int64_t window_id, const ReplayFinished& replay) {
  InstrumentState& instrument = core.s.watch.instrument;
  WindowState& window = *find_window(core.s, window_id);
  window.instrument_pending = false;
  const std::optional<double>& end = replay.replay_end_loss_bf16;
  if (window.measured && window.measured->reference && end && std::isfinite(*end)) {
    const double reference = *window.measured->reference;
    const double difference = std::abs(100 * (*end - reference) / reference);
    learn(core, std::min(difference, std::abs(instrument.last_percent)),
          window.confirmation == "agreed");
  }
  finish_window(core, window_id);
}

void handle_instrument_again(Core& core, int64_t window_id, const ReplayFinished& replay) {
  InstrumentState& instrument = core.s.watch.instrument;
  WindowState& window = *find_window(core.s, window_id);
  window.instrument_pending = false;
  const bool comparable = !replay.end_hash.empty() && !window.shadow_hash.empty() &&
                          replay.fingerprint_equal && window.shadow_fingerprint_equal;
  if (comparable && replay.end_hash != window.shadow_hash) {
    if (!instrument.broken) {
      RecordDecision& decision = core.record(
          "instrument",
          fmt::format("{}: the same BF16 replay gave other bits the second time (by {} and {}): "
                      "the instrument is broken. Gaps lead to nothing until it is sound.",
                      window_name(window), window.verifier, replay.verifier),
          evidence_of(window, instrument));
      decision.verdict = "broken_instrument";
      decision.window = window_id;
    }
    instrument.broken = true;
    return finish_window(core, window_id);
  }
  record_sound_again(core, window);
  learn(core, instrument.last_percent, false);
  core.explain(
      "BF16 under another order of sums parts further than it did, with the same bits each "
      "time.");
  finish_window(core, window_id);
}

void instrument_failed(Core& core, int64_t window_id, const std::string& why) {
  note_unanswered(core, why);
  find_window(core.s, window_id)->instrument_pending = false;
  finish_window(core, window_id);
}

// Nobody will answer the replays of an open case.
void give_case_up(Core& core, const std::string& why) {
  RecordDecision& decision = core.record(
      "verdict", fmt::format("Window {} is not explained: {}.", core.s.investigation->window, why),
      {{"why", why}});
  decision.verdict = "unexplained";
  decision.window = core.s.investigation->window;
  end_case(core, "failed", why);
}

void note_unverified(Core& core) {
  State& s = core.s;
  s.watch.unverified_windows += 1;
  const Policy::Verifier& policy = core.policy.verifier;
  if (s.watch.unverified_windows < policy.loss_windows) return;
  const std::string what =
      fmt::format("{} windows in a row were verified by nobody: the run has no shadow",
                  s.watch.unverified_windows);
  json::object evidence{{"windows", s.watch.unverified_windows}};
  if (policy.on_loss == "continue" || !core.enforcing() || !core.muted().empty() || core.held() ||
      s.ended || plan_of(s, s.plan_version).bf16) {
    if (s.watch.unverified_windows == policy.loss_windows)
      core.record("instrument", what + ". It goes on as it is.", evidence);
    return;
  }
  if (s.investigation) give_case_up(core, what);
  if (s.investigation || s.directive) return;  // the next window tries again
  leave_fp8(core, what, std::move(evidence), policy.on_loss == "hold");
}

}  // namespace gnomon::decide
