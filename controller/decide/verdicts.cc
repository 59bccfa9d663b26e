// What follows from a verdict.
#include <fmt/format.h>

#include <algorithm>

#include "controller/decide/core.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

void remember_transient(Core& core, const Verdict& verdict) {
  State& s = core.s;
  if (s.trust.transients.size() >= kTransientsMax)
    s.trust.transients.erase(s.trust.transients.begin());
  s.trust.transients.push_back({s.attempt.host, verdict.since_step.value_or(s.newest_step)});
}

void take_as_quiet(Core& core) {
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
  take_as_quiet(core);
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
  if (s.generic_spike_steps.size() >= kGenericSpikesMax) {
    s.generic_spike_steps.erase(s.generic_spike_steps.begin());
  }
  const int64_t step = s.investigation->evidence.finding->step;
  s.generic_spike_steps.push_back(step);
  forget_spiked(core, step);
  end_case(core, "quiet");
}

// Rescues and the way back begin where BF16 does not suffer.
void look_from_afar(Case& investigation) {
  if (spoilt_before(investigation.evidence)) {
    std::swap(investigation.window, investigation.far_window);
  }
}

}  // namespace

void distrust(Core& core, const std::string& verifier, const std::string& why, VerdictName verdict,
              int64_t window) {
  State& s = core.s;
  forget_verifier(core, verifier);
  forget_record(s, verifier);
  // What it had under way when it was named may come late.
  if (!believed(s, verifier)) return;
  if (s.trust.quarantined.size() >= kQuarantinedMax)
    s.trust.quarantined.erase(s.trust.quarantined.begin());
  s.trust.quarantined.push_back(verifier);
  core.effects.emplace_back(QuarantineVerifier{verifier, why});
  RecordDecision& decision =
      core.record("action",
                  fmt::format("Action: no replay of this run goes to {} any more; what it measured "
                              "is no evidence.",
                              verifier),
                  {{"verifier", verifier}});
  decision.verdict = verdict;
  decision.action = "quarantine";
  decision.enforced = true;
  decision.window = window;
  drop_witness(core, verifier, window);
  forget_probes_of(s, verifier);
}

void measure_again(Core& core, int64_t id) {
  State& s = core.s;
  if (find_window(s, id) == nullptr) return;  // it has gone with what its verifier said of others
  WindowState& window = *find_window(s, id);
  forget_window(core, id);
  if (!window.measured || s.ended) {
    if (of_case(s, id)) return end_case(core, "skipped");
    close_window(core, id, "skipped");
    return settle_verified(core);
  }
  // What a case was asked for is not waited for any more.
  std::erase_if(s.replays, [&](const PendingReplay& replay) {
    return replay.window == id && replay.role != "probe" && !is_of_instrument(replay.role);
  });
  forget_witnesses(s, window);
  window.measured.reset();
  window.judged.reset();
  window.deferred = false;
  window.outcome = "quiet";
  window.shadow_pending = true;
  order(core, window, "bf16", "shadow", "", true, kPriorityShadow);
  if (of_case(s, id)) end_case(core, WindowStatus());
}

void conclude(Core& core, const Verdict& verdict) {
  State& s = core.s;
  const VerdictName name = verdict.name;
  record_verdict(core, verdict);
  s.investigation->verdict = name;
  s.investigation->since_step = verdict.since_step;
  if (name == "generic_spike") return share_spike(core);
  if (name == "broken_instrument") return doubt(core, verdict);
  if (name == "verifier_fault") {
    const int64_t window = s.investigation->window;
    distrust(core, verdict.verifier, verdict.sentence, name, window);
    return measure_again(core, window);
  }
  if (name == "accepted_gap") return accept(core);
  if (name == "chance") {
    note_chance(core);
    return take_as_quiet(core);
  }
  if (name == "unexplained" && s.investigation->evidence.trigger == "spike")
    return end_case(core, "failed");
  if (name == "transient_fault") remember_transient(core, verdict);
  // No replay shows which site's offset has moved: none has a gap to close.
  const bool of_sites = s.investigation->evidence.trigger != "offset" &&
                        (name == "fp8_numerics" || name == "kernel_bug");
  if (of_sites) look_from_afar(*s.investigation);
  if (of_sites && next_rung_pins(core)) return start_attribution(core);
  respond(core, name, {});
}

}  // namespace gnomon::decide
