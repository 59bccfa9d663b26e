#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "controller/decide/core.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

SearchLimits search_limits(const Policy& policy) {
  SearchLimits limits;
  limits.width = policy.attribution.parallel;
  limits.replays_max = policy.attribution.replays_max;
  limits.guilty_max = policy.attribution.sites_max;
  return limits;
}

void order_same(Core& core, const WindowState& window, bool endpoints) {
  // The base of a rollback was saved under the plan before it: `same` would replay that one.
  const bool as_saved = window.start.plan_version == window.plan_version;
  order(core, window, as_saved ? "same" : "plan", "same",
        as_saved ? std::string() : plan_of(core.s, window.plan_version).toml, endpoints,
        kPriorityTriage);
}

// The newest checkpoint well before a step, saved after the last change of plan.
const KnownCheckpoint* incident_start(const State& s, int64_t step) {
  const KnownCheckpoint* close = nullptr;
  const KnownCheckpoint* clear = nullptr;
  for (const KnownCheckpoint& known : s.checkpoints) {
    if (plan_after(s, known) != s.plan_version || known.step < s.attempt.base_step) continue;
    if (!one_plan(s, known.step, step)) continue;
    if (known.step < step) close = &known;
    if (known.step <= step - kIncidentLeadSteps) clear = &known;
  }
  return clear != nullptr ? clear : close;
}

std::string finding_words(const SpikeFinding& finding) {
  if (finding.kind == "non_finite") {
    return std::isfinite(finding.loss)
               ? fmt::format("The gradient norm of step {} is not finite", finding.step)
               : fmt::format("The loss of step {} is not finite", finding.step);
  }
  return fmt::format("Step {} spiked: loss {:.4f}, threshold {:.4f} ({})", finding.step,
                     finding.loss, finding.threshold.value_or(0), finding.rule);
}

json::object finding_evidence(const SpikeFinding& finding) {
  return {{"step", finding.step},
          {"loss", number(finding.loss)},
          {"grad_norm", number(finding.grad_norm)},
          {"expected", number(finding.expected)},
          {"deviation", number(finding.deviation)},
          {"threshold", finding.threshold ? number(*finding.threshold) : json::value(nullptr)}};
}

json::object verdict_evidence(const Case& investigation) {
  json::object evidence{{"trigger", investigation.trigger}, {"window", investigation.window}};
  if (investigation.finding) evidence["finding"] = finding_evidence(*investigation.finding);
  if (investigation.measured.d_percent)
    evidence["d_percent"] = number(*investigation.measured.d_percent);
  if (investigation.same) {
    const Reproduction& same = *investigation.same;
    evidence["reproduces"] = same.reproduces;
    evidence["bitwise"] = same.bitwise;
    evidence["first_mismatch_step"] =
        same.first_mismatch_step ? json::value(*same.first_mismatch_step) : json::value(nullptr);
  }
  if (investigation.bf16) {
    evidence["bf16_loss"] =
        investigation.bf16->loss ? number(*investigation.bf16->loss) : json::value(nullptr);
    evidence["bf16_spikes"] = investigation.bf16->spikes;
    evidence["bf16_non_finite"] = investigation.bf16->non_finite;
  }
  return evidence;
}

std::string verdict_sentence(const Case& investigation, const std::string& verdict) {
  const std::string seen =
      investigation.same ? investigation.same->sentence
                         : std::string("No verifier could replay the window under the same plan");
  if (verdict == "transient_fault") {
    return seen + ": a transient fault of hardware or software, not FP8.";
  }
  if (verdict == "generic_spike") {
    return seen + ", and BF16 suffers at the same step too: data or learning rate, not FP8.";
  }
  if (verdict == "fp8_numerics") return seen + ", and BF16 does not suffer: FP8 is to blame.";
  return seen +
         (investigation.same ? ", but BF16 could not be tried: unexplained." : ": unexplained.");
}

void give_up_attribution(Core& core, const std::string& why) {
  Case& investigation = *core.s.investigation;
  RecordDecision& decision = core.record(
      "attribution", fmt::format("The blame could not be pinned to single sites: {}.", why),
      {{"replays", investigation.search.replays},
       {"found", names(investigation.search.guilty)},
       {"why", why}});
  decision.verdict = "fp8_numerics";
  decision.window = investigation.window;
  respond(core, "fp8_numerics", {});
}

void finish_attribution(Core& core) {
  Case& investigation = *core.s.investigation;
  std::vector<std::string> guilty = investigation.search.guilty;
  std::sort(guilty.begin(), guilty.end());
  RecordDecision& decision =
      core.record("attribution",
                  fmt::format("Blamed: {}. With {} in BF16 the damage is gone ({} replays).",
                              fmt::join(guilty, ", "), guilty.size() == 1 ? "it" : "them",
                              investigation.search.replays),
                  {{"replays", investigation.search.replays}, {"sites", names(guilty)}});
  decision.verdict = "fp8_numerics";
  decision.window = investigation.window;
  decision.sites = guilty;
  respond(core, "fp8_numerics", guilty);
}

// Orders what the search wants to know, or ends it.
void pump_search(Core& core) {
  State& s = core.s;
  AttributionSearch& search = s.investigation->search;
  const SearchLimits limits = search_limits(core.policy);
  const WindowState& window = *find_window(s, s.investigation->window);
  if (search.done() && !search.guilty.empty()) return finish_attribution(core);
  if (search.done()) return give_up_attribution(core, "no site of the plan runs in FP8");
  const std::string plan = plan_of(s, window.plan_version).toml;
  for (int64_t prefix : search.next(limits)) {
    order(core, window, "plan", "rescue",
          rescue_plan(plan, search.rescued(prefix), window.plan_version),
          s.investigation->trigger == "gap", kPriorityAttribution, prefix);
  }
  if (!search.exhausted(limits)) return;
  give_up_attribution(core, search.failures >= limits.failures_max
                                ? fmt::format("{} replays could not be done", search.failures)
                                : fmt::format("{} replays and {} sites found were not enough",
                                              search.replays, search.guilty.size()));
}

void start_attribution(Core& core) {
  State& s = core.s;
  const WindowState& window = *find_window(s, s.investigation->window);
  s.investigation->stage = "attribution";
  s.investigation->search =
      AttributionSearch::start(fp8_sites(s.run, plan_of(s, window.plan_version).toml));
  pump_search(core);
}

void conclude(Core& core, const std::string& verdict) {
  State& s = core.s;
  const Case& investigation = *s.investigation;
  RecordDecision& decision = core.record("verdict", verdict_sentence(investigation, verdict),
                                         verdict_evidence(investigation));
  decision.verdict = verdict;
  decision.window = investigation.window;
  if (verdict == "generic_spike") {
    if (s.generic_spike_steps.size() >= kGenericSpikesMax) {
      s.generic_spike_steps.erase(s.generic_spike_steps.begin());
    }
    s.generic_spike_steps.push_back(investigation.finding->step);
    return end_case(core, "quiet");
  }
  if (verdict == "unexplained" && investigation.trigger == "spike") return end_case(core, "failed");
  if (verdict == "fp8_numerics" && next_rung_pins(core)) return start_attribution(core);
  respond(core, verdict, {});
}

void advance_triage(Core& core) {
  const Case& investigation = *core.s.investigation;
  const bool same_known = investigation.same || investigation.same_failed;
  if (!same_known) return;
  if (investigation.trigger == "gap") return conclude(core, gap_verdict(investigation.same));
  const bool differs = investigation.same && !investigation.same->reproduces;
  if (!differs && !investigation.bf16 && !investigation.bf16_failed) return;
  conclude(core, spike_verdict(*investigation.finding, investigation.same, investigation.bf16));
}

void take_rescue(Core& core, int64_t prefix, const ReplayFinished& result) {
  State& s = core.s;
  Case& investigation = *s.investigation;
  const WindowState& window = *find_window(s, investigation.window);
  const double share = core.policy.attribution.recovered_share;
  const bool recovers = investigation.trigger == "gap"
                            ? rescue_closes_gap(result, investigation.measured, share,
                                                core.policy.detector.tolerance_percent)
                            : rescue_avoids_spike(result, *investigation.finding,
                                                  *investigation.bf16, share, window.steps);
  const size_t found = investigation.search.guilty.size();
  core.say(fmt::format("Rescuing {} site(s) {}.", investigation.search.rescued(prefix).size(),
                       recovers ? "recovers" : "does not recover"));
  investigation.search.answer(prefix, recovers);
  const AttributionSearch& search = investigation.search;
  std::erase_if(s.replays, [&](const PendingReplay& replay) {
    if (replay.role != "rescue") return false;
    return search.guilty.size() != found ||
           std::find(search.asked.begin(), search.asked.end(), replay.prefix) == search.asked.end();
  });
  pump_search(core);
}

}  // namespace

void open_gap_case(Core& core, const WindowState& window) {
  Case opened;
  opened.window = window.id;
  opened.trigger = "gap";
  opened.stage = "triage";
  opened.measured = *window.measured;
  core.s.investigation = std::move(opened);
  order_same(core, window, true);
}

void suspect_step(Core& core, const SpikeFinding& finding) {
  State& s = core.s;
  if (const std::string muted = core.muted(); !muted.empty()) {
    core.record("alarm", fmt::format("{}. Nothing follows: {}.", finding_words(finding), muted),
                finding_evidence(finding));
    return;
  }
  if (core.held() || s.fault_reported) {
    return core.say(finding_words(finding) + "; the fault has already been reported.");
  }
  const KnownCheckpoint* start = incident_start(s, finding.step);
  if (start == nullptr) {
    core.record("alarm", finding_words(finding) + ". No checkpoint before it can be replayed.",
                finding_evidence(finding));
    return;
  }
  if (s.suspicion)
    return core.say(finding_words(finding) +
                    "; an earlier step is still waiting to be looked into.");
  s.suspicion = Suspicion{finding, *start, s.attempt.number, s.plan_version};
  if (s.investigation || s.directive) {
    return core.say(finding_words(finding) + "; it waits for the open case.");
  }
  open_suspicion(core);
}

void open_suspicion(Core& core) {
  State& s = core.s;
  const Suspicion suspicion = *s.suspicion;
  s.suspicion.reset();
  const SpikeFinding& finding = suspicion.finding;
  // A gradient that is not finite shows in the loss of the step after it.
  const bool gradient_only = finding.kind == "non_finite" && std::isfinite(finding.loss);
  const WindowState& window =
      add_window(core, "incident", suspicion.start, finding.step + (gradient_only ? 1 : 0), "",
                 suspicion.plan_version);
  RecordDecision& decision =
      core.record("alarm",
                  fmt::format("{}. Steps {}–{} are replayed.", finding_words(finding),
                              window.start.step + 1, window.end_step()),
                  finding_evidence(finding));
  decision.window = window.id;
  Case opened;
  opened.window = window.id;
  opened.trigger = finding.kind;
  opened.stage = "triage";
  opened.finding = finding;
  s.investigation = std::move(opened);
  order_same(core, window, false);
  if (plan_of(s, window.plan_version).bf16) return;  // `same` is the BF16 replay
  order(core, window, "bf16", "bf16", "", false, kPriorityTriage);
}

void take_case_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result) {
  State& s = core.s;
  GNOMON_ASSERT(s.investigation && s.investigation->window == replay.window);
  Case& investigation = *s.investigation;
  if (replay.role == "rescue") return take_rescue(core, replay.prefix, result);
  const WindowState& window = *find_window(s, replay.window);
  const bool all_bf16 = plan_of(s, window.plan_version).bf16;
  if (replay.role == "same") {
    investigation.same = investigation.finding
                             ? compare_same_spike(result, *investigation.finding, window.steps)
                             : compare_same_gap(result, investigation.measured);
  }
  if (investigation.finding && (replay.role == "bf16" || all_bf16)) {
    investigation.bf16 = compare_spike(result, *investigation.finding, window.steps);
  }
  advance_triage(core);
}

void case_replay_failed(Core& core, const PendingReplay& replay, const std::string& why) {
  GNOMON_ASSERT(core.s.investigation && core.s.investigation->window == replay.window);
  Case& investigation = *core.s.investigation;
  core.say(fmt::format("Replay {} could not be done: {}.", replay.id, why));
  if (replay.role == "rescue") {
    investigation.search.failed(replay.prefix);
    return pump_search(core);
  }
  if (replay.role == "same") investigation.same_failed = true;
  if (replay.role == "bf16") investigation.bf16_failed = true;
  advance_triage(core);
}

void end_case(Core& core, const std::string& outcome) {
  State& s = core.s;
  const int64_t window = s.investigation->window;
  s.investigation.reset();
  close_window(core, window, outcome);
  if (s.suspicion && !s.directive && !core.held() && !s.ended && core.muted().empty()) {
    open_suspicion(core);
  }
  settle_verified(core);
  judge_deferred(core);
}

}  // namespace gnomon::decide
