#include "controller/decide/investigating.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "controller/decide/asking.h"
#include "controller/decide/attribution.h"
#include "controller/decide/case.h"
#include "controller/decide/confirm.h"
#include "controller/decide/containment.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/ladder.h"
#include "controller/decide/measurement.h"
#include "controller/decide/plans.h"
#include "controller/decide/spending.h"
#include "controller/decide/verdicts.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/window_lengths.h"
#include "controller/decide/windows.h"
#include "controller/decide/witnesses.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kNonFiniteCasesMax = 2;  // about the same steps
constexpr int64_t kStepsAhead = 40;        // windows that a small gap's growth is carried on

std::string finding_words(const SpikeFinding& finding) {
  if (finding.kind == "non_finite") {
    return std::isfinite(finding.loss)
               ? fmt::format("The gradient norm of step {} is not finite", finding.step)
               : fmt::format("The loss of step {} is not finite", finding.step);
  }
  return fmt::format("Step {} spiked: loss {:.4f}, threshold {:.4f} ({})", finding.step,
                     finding.loss, finding.threshold.value_or(0), finding.rule);
}

// Transient faults that were found on the trainer's host not long ago.
int64_t earlier_transients(const Core& core) {
  const State& s = core.s;
  return std::count_if(s.trust.transients.begin(), s.trust.transients.end(),
                       [&](const TransientFault& known) {
                         return known.host == s.attempt.host &&
                                known.step + core.policy.triage.transient_steps >= s.newest_step;
                       });
}

TriageRules rules_of(const Core& core) {
  const State& s = core.s;
  TriageRules rules;
  rules.pairs = core.policy.triage.pairs;
  const WindowState& window = *find_window(core.s, s.investigation->window);
  // What was accepted is none either.
  rules.tolerance_percent = std::max(core.policy.detector.tolerance_percent,
                                     window.judged ? window.judged->null_percent : 0);
  rules.ceiling_percent = core.policy.detector.ceiling_percent;
  if (window.judged && of_one_window(*window.judged))
    rules.one_window_percent = window.judged->threshold;
  const GapState& gap = window.kind == "long" ? s.watch.long_gap : s.watch.gap;
  rules.noise_percent = std::sqrt(gap.scale.variance);
  rules.trainer_replays = trainer_can_replay(s);
  rules.compiled = s.run.capabilities.compiled;
  rules.other_verifiers = others_believed(s, who_answered_same(s));
  const std::vector<std::string> asked = asked_about_bits(s);
  rules.third_verifier = std::ranges::any_of(believed_verifiers(s), [&](const std::string& known) {
    return std::ranges::find(asked, known) == asked.end();
  });
  const VerifierRecord* differs = find_record(s, who_differs(s));
  rules.differing_was_exact = differs != nullptr && differs->was_exact;
  rules.earlier_transients = earlier_transients(core);
  rules.transients_spent = rules.earlier_transients >= core.policy.triage.transients_max;
  const std::optional<SpikeFinding>& finding = s.investigation->evidence.finding;
  rules.overdrawn = finding && finding->kind == "spike" && is_overdrawn(s, core.policy) &&
                    was_shared_lately(s, finding->step);
  rules.between_percent = noise_between(core);
  rules.naming_percent = noise_that_names(core);
  // What is over the ceiling would alarm again, accepted or not.
  rules.accept_percent =
      std::min(core.policy.detector.accept_percent, core.policy.detector.ceiling_percent);
  // Pinned sites show that something is wrong with the run: what is left has a site, too.
  if (!pinned_sites(s).empty()) rules.accept_percent = 0;
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  const int64_t total = s.run.total_steps;
  const int64_t left = total > 0 ? std::max<int64_t>(0, total - s.newest_step) : kUnknown;
  const std::vector<std::string> low = fp8_sites(s.run, plan_of(s, window.plan_version).toml);
  rules.sends_low = std::ranges::any_of(
      low, [](const std::string& site) { return site.starts_with("communication."); });
  rules.steps_ahead = std::min(left, kStepsAhead * std::max<int64_t>(1, core.policy.window.steps));
  return rules;
}

// What other sources say of the BF16 replay that the case rests on.
void read_confirmation(Core& core) {
  State& s = core.s;
  TriageEvidence& evidence = s.investigation->evidence;
  const WindowState* window = window_of_bf16(s);
  evidence.confirmation = window != nullptr ? window->confirmation : "alone";
  if (window == nullptr || window->witnesses.empty()) return;
  evidence.source = window->witnesses.front().verifier;
  evidence.on_trainer = window->witnesses.front().on_trainer;
  evidence.reports_percent = window->reports_percent;
  evidence.rests_on = evidence.chance_excluded && evidence.confirmation == "agreed"
                          ? rests_on(core, *window)
                          : std::string();
}

TriageAnswer answer_of(const RunFacts& run, const Case& investigation, const WindowState& window,
                       const PendingReplay& replay, const ReplayFinished& result) {
  const TriageEvidence& evidence = investigation.evidence;
  TriageAnswer answer;
  answer.exact = run.capabilities.exact_replay && result.fingerprint_equal;
  answer.kind = replay.role;
  answer.seed = replay.number;
  answer.verifier = result.verifier;
  answer.on_trainer = result.on_trainer;
  answer.start_loss_plan = result.start_loss_plan;
  answer.end_loss = result.replay_end_loss_bf16;
  const bool same = replay.role.starts_with("same");
  if (same) answer.end_hash = result.end_hash;
  if (evidence.finding) {
    if (same) {
      answer.reproduction = compare_same_spike(result, *evidence.finding, window.steps);
      answer.by_losses = compare_spike_by_losses(result, *evidence.finding, window.steps);
    }
    answer.spike =
        compare_spike(result, *evidence.finding, window.steps,
                      from_afar(evidence, replay.role, replay.number) ? kAroundSpike : 0);
  } else if (same) {
    answer.reproduction = compare_same_gap(result, evidence.measured);
    answer.by_losses = compare_gap_by_losses(result, evidence.measured);
  }
  if (same && (!answer.reproduction->bitwise || answer.reproduction->reproduces)) {
    answer.by_losses.reset();
  }
  if (replay.role == "long_fork") {
    const Measurement measured = measure_shadow(result);
    if (measured.unusable.empty()) answer.long_d_percent = measured.d_percent;
    answer.long_steps = window.steps;
  }
  return answer;
}

}  // namespace

void advance_case(Core& core) {
  State& s = core.s;
  const auto known = [&] {
    const WindowState* window = window_of_bf16(s);
    return window != nullptr ? window->confirmation : std::string("alone");
  };
  for (;;) {
    read_confirmation(core);
    const TriageStep step = triage(s.investigation->evidence, rules_of(core));
    if (step.verdict) return conclude(core, *step.verdict);
    const TriageEvidence& evidence = s.investigation->evidence;
    const size_t answered = evidence.answers.size() + evidence.seconds.size();
    for (const TriageTest& test : step.tests) {
      if (!is_under_way(s, test)) order_test(core, test);
    }
    // A test that nobody can do is answered at once.
    const bool settled = known() != evidence.confirmation;
    if (evidence.answers.size() + evidence.seconds.size() == answered && !settled) return;
  }
}

void open_gap_case(Core& core, const WindowState& window) {
  TriageEvidence evidence;
  evidence.trigger = "gap";
  evidence.measured = *window.measured;
  // While training is unstable, gaps are as wide as chance makes them then: it is asked.
  evidence.chance_excluded =
      window.judged && !of_one_window(*window.judged) && !core.s.watch.stability.unstable_since;
  evidence.steps = window.steps;
  evidence.level_percent = window.level_percent;
  open_case(core, window.id, std::move(evidence));
  advance_case(core);
}

void open_drift_case(Core& core, const WindowState& window) {
  TriageEvidence evidence;
  evidence.trigger = "offset";
  evidence.measured = *window.measured;
  open_case(core, window.id, std::move(evidence));
  advance_case(core);
}

void open_audit_case(Core& core, const WindowState& window, const ReplayFinished& replay) {
  TriageEvidence evidence;
  evidence.trigger = "audit";
  evidence.measured = *window.measured;
  evidence.steps = window.steps;
  const WindowState audited = window;
  open_case(core, audited.id, std::move(evidence));
  PendingReplay same;
  same.role = "same";
  Case& opened = *core.s.investigation;
  opened.evidence.answers.push_back(answer_of(core.s.run, opened, audited, same, replay));
  if (!audited.exact_by.empty() && believed(core.s, audited.exact_by)) {
    TriageAnswer before;
    before.kind = "same_elsewhere";
    before.verifier = audited.exact_by;
    before.reproduction = Reproduction{};
    before.reproduction->reproduces = before.reproduction->bitwise = true;
    opened.evidence.answers.push_back(std::move(before));
  }
  advance_case(core);
}

static void open_suspicion(Core& core) {
  State& s = core.s;
  const Suspicion suspicion = *s.suspicion;
  s.suspicion.reset();
  const SpikeFinding& finding = suspicion.finding;
  if (finding.kind == "non_finite") s.spikes.non_finite_cases += 1;
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
  TriageEvidence evidence;
  evidence.trigger = finding.kind;
  evidence.finding = finding;
  evidence.in_bf16 = plan_of(s, window.plan_version).bf16;
  open_case(core, window.id, std::move(evidence));
  advance_case(core);
}

void suspect_step(Core& core, const SpikeFinding& finding) {
  State& s = core.s;
  if (const std::string muted = core.muted(); !muted.empty()) {
    core.record("alarm", fmt::format("{}. Nothing follows: {}.", finding_words(finding), muted),
                finding_evidence(finding));
    return;
  }
  if (core.held() || s.fault_reported) {
    return core.explain(finding_words(finding) + "; the fault has already been reported.");
  }
  // Spikes that BF16 shares come again and again. While they have overdrawn the budget, triage asks
  // for one replay (TriageRules::overdrawn), of so many spikes in the distance of two windows.
  constexpr int64_t kSharedEach = 2;
  const int64_t shared = s.spikes.shared_step;
  const int64_t apart = window_lengths(s, core.policy).every / kSharedEach;
  if (finding.kind == "spike" && is_overdrawn(s, core.policy) && shared >= 0 &&
      finding.step < shared + apart) {
    note_generic_spike(s, finding.step);
    return core.explain(finding_words(finding) +
                        "; BF16 shared the one before, and the budget is overdrawn: it is taken "
                        "for shared, too.");
  }
  const KnownCheckpoint* start = incident_start(s, finding.step, s.plan_version);
  if (start == nullptr) {
    core.record("alarm", finding_words(finding) + ". No checkpoint before it can be replayed.",
                finding_evidence(finding));
    return;
  }
  if (s.suspicion)
    return core.explain(finding_words(finding) +
                        "; an earlier step is still waiting to be looked into.");
  s.suspicion = Suspicion{finding, *start, s.attempt.number, s.plan_version};
  if (s.investigation || s.directive) {
    return core.explain(finding_words(finding) + "; it waits for the open case.");
  }
  open_suspicion(core);
}

void follow_non_finite(Core& core) {
  const State& s = core.s;
  const bool settled = s.spikes.non_finite_shared || s.fault_reported || core.held();
  const bool waits = s.suspicion || s.investigation || s.directive || !core.muted().empty();
  if (settled || waits) return;
  const SpikeFinding finding = *s.spikes.non_finite;
  const bool asked = s.spikes.non_finite_cases >= kNonFiniteCasesMax;
  if (!asked && incident_start(s, finding.step, s.plan_version) != nullptr)
    return suspect_step(core, finding);
  // One step alone may have been skipped by the trainer, as scaling of the loss does.
  if (s.spikes.non_finite_losses < kNonFiniteLosses) return;
  core.record("alarm",
              fmt::format("The loss has not been finite for {} steps, since step {}.",
                          s.spikes.non_finite_losses, finding.step),
              finding_evidence(finding));
  go_back_unexplained(core, finding.step,
                      asked ? "The replays of it have shown nothing"
                            : "No checkpoint before it can be replayed under its plan");
}

void open_waiting_suspicion(Core& core) {
  const State& s = core.s;
  if (s.suspicion && !s.investigation && !s.directive && !core.held() && !s.ended &&
      core.muted().empty())
    open_suspicion(core);
}

void handle_case_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result) {
  State& s = core.s;
  GNOMON_ASSERT(of_case(s, replay.window));
  Case& investigation = *s.investigation;
  if (replay.role == "scores") return handle_scores(core, result);
  if (replay.role == "rescue") return handle_rescue(core, replay.number, result);
  WindowState& window = *find_window(s, replay.window);
  TriageEvidence& evidence = investigation.evidence;
  (replay.second ? evidence.seconds : evidence.answers)
      .push_back(answer_of(s.run, investigation, window, replay, result));
  if (replay.second) return advance_case(core);
  const bool of_bf16 = replay.role == "bf16" || replay.role == "bf16_far";
  if (of_bf16 && investigation.evidence.finding) {
    window.witnesses = {witness_of(result)};
    window.witnesses.front().measured = {};
    window.witnesses.front().suffers = suffers_in_case(core, window, result);
    window.confirmation.clear();
    window.confirm_asked = 0;
  }
  advance_case(core);
}

void case_replay_failed(Core& core, const PendingReplay& replay, const std::string& why) {
  GNOMON_ASSERT(of_case(core.s, replay.window));
  core.explain(fmt::format("Replay {} could not be done: {}.", replay.id, why));
  if (replay.role == "scores") return scores_failed(core);
  if (replay.role == "rescue") return rescue_failed(core, replay.number);
  answer_failed(core, {replay.role, replay.number, replay.second});
  advance_case(core);
}

}  // namespace gnomon::decide
