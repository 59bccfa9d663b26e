#include "controller/decide/verdicts.h"

#include <fmt/format.h>

#include <algorithm>

#include "controller/decide/attribution.h"
#include "controller/decide/bases.h"
#include "controller/decide/case.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/ladder.h"
#include "controller/decide/schedule.h"
#include "controller/decide/stability.h"
#include "controller/decide/standing.h"
#include "controller/decide/trust.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr size_t kTransientsMax = 16;
constexpr int64_t kCheckedAfterDoubt = 8;  // windows of a verifier on whose word alone an alarm was

void remember_transient(Core& core, const Verdict& verdict) {
  State& s = core.s;
  if (s.trust.transients.size() >= kTransientsMax)
    s.trust.transients.erase(s.trust.transients.begin());
  s.trust.transients.push_back({s.attempt.host, verdict.since_step.value_or(s.newest_step)});
}

// Who finds other bits once more, without the run's in between, is not believed to be exact.
void note_unsettled(Core& core) {
  for (const TriageAnswer& answer : core.s.investigation->evidence.answers) {
    if (answer.reproduction && answer.reproduction->bitwise && !answer.reproduction->reproduces)
      note_unsettled_bits(core.s, answer.verifier);
  }
}

void close_as_quiet(Core& core) {
  State& s = core.s;
  const WindowState window = *find_window(s, s.investigation->window);
  s.fault_reported = false;
  clear_harm(s);
  add_quiet_end(core, window);
  end_case(core, "quiet");
}

void accept(Core& core) {
  State& s = core.s;
  const WindowState& window = *find_window(s, s.investigation->window);
  GapState& gap = window.kind == "long" ? s.watch.long_gap : s.watch.gap;
  const double before = window.judged ? window.judged->null_percent : 0;
  const double level = std::max(level_of(s.investigation->evidence), before);
  accept_gap(gap, level);
  RecordDecision& decision = core.record(
      "accept",
      fmt::format("A mean gap of up to {:.3f}% is taken as the run's own from now on.", level),
      {{"level_percent", number(level)}});
  decision.verdict = "accepted_gap";
  decision.window = window.id;
  close_as_quiet(core);
}

bool bf16_suffers(const TriageEvidence& evidence) {
  return evidence.in_bf16 || std::ranges::any_of(evidence.answers, [](const TriageAnswer& answer) {
           return answer.kind.starts_with("bf16") && answer.spike &&
                  (answer.spike->spikes || answer.spike->non_finite);
         });
}

void share_spike(Core& core) {
  State& s = core.s;
  if (bf16_suffers(s.investigation->evidence))
    note_shared_spike(core, *s.investigation->evidence.finding);
  const SpikeFinding& finding = *s.investigation->evidence.finding;
  const int64_t step = finding.step;
  if (finding.kind == "non_finite")
    s.spikes.non_finite_shared =
        s.spikes.non_finite.has_value() && bf16_suffers(s.investigation->evidence);
  if (finding.kind == "spike") s.spikes.shared_step = step;
  note_generic_spike(s, step);
  forget_spiked(core, step);
  end_case(core, "quiet");
}

// A gap over the tolerance, of one window alone, may be the first of many.
void look_again(Core& core) {
  State& s = core.s;
  const Case& investigation = *s.investigation;
  const WindowState& window = *find_window(s, investigation.window);
  const GapSettings settings = gap_settings(core.policy);
  if (window.kind == "long" || !window.judged || !of_one_window(*window.judged) ||
      window.start.step < core.policy.detector.burn_in_steps ||
      !(level_of(investigation.evidence) > settings.tolerance_percent))
    return;
  ask_burst(s.watch.gap, settings);
  s.watch.burst_left = s.watch.gap.evidence.burst_left;
  bring_forward(core);
  core.explain(fmt::format("{} windows are taken back to back.", s.watch.burst_left));
}

// Rescues and the way back begin where BF16 does not suffer.
void look_from_afar(Case& investigation) {
  if (spoilt_before(investigation.evidence)) {
    std::swap(investigation.window, investigation.far_window);
  }
}

// Follows from broken_instrument: the case ends and nothing is changed.
void doubt(Core& core, const Verdict& verdict) {
  State& s = core.s;
  const int64_t id = s.investigation->window;
  restart_gap(s.watch.gap);
  s.watch.burst_left = 0;
  if (!verdict.verifier.empty()) {
    check_next(s, verdict.verifier, kCheckedAfterDoubt);
    return withdraw_window(core, id);
  }
  s.watch.instrument.broken = s.watch.instrument.disputed = true;
  withdraw_window(core, id);
}

}  // namespace

void conclude(Core& core, const Verdict& verdict) {
  State& s = core.s;
  const VerdictName name = verdict.name;
  record_verdict(core, verdict);
  s.investigation->verdict = name;
  s.investigation->since_step = verdict.since_step;
  if (name == "broken_instrument" || name == "unexplained") note_unsettled(core);
  if (name == "generic_spike") return share_spike(core);
  if (name == "broken_instrument") return doubt(core, verdict);
  if (name == "verifier_fault") {
    const int64_t window = s.investigation->window;
    distrust(core, verdict.verifier, verdict.sentence, name, window);
    return measure_again(core, window);
  }
  if (name == "accepted_gap") return accept(core);
  if (name == "chance") {
    if (replays_disagree(s.investigation->evidence)) s.watch.audits_unusable = kAuditsUnusableMax;
    note_chance(core);
    look_again(core);
    return close_as_quiet(core);
  }
  if (name == "unexplained" && s.investigation->evidence.trigger == "spike")
    return end_case(core, "failed", verdict.sentence);
  if (name == "transient_fault") remember_transient(core, verdict);
  // No replay shows which site's offset has moved: none has a gap to close.
  const bool of_sites = s.investigation->evidence.trigger != "offset" &&
                        (name == "fp8_numerics" || name == "kernel_bug");
  if (of_sites) look_from_afar(*s.investigation);
  if (of_sites && next_rung_pins(core)) return start_attribution(core);
  const int64_t window = s.investigation->window;
  respond(core, name, {});
  if (!verdict.verifier.empty())
    distrust(core, verdict.verifier, verdict.sentence, "verifier_fault", window);
}

}  // namespace gnomon::decide
