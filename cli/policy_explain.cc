#include "cli/policy_explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/counted.h"
#include "controller/decide/promise.h"
#include "controller/decide/spending.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::cli {
namespace {

using decide::Mode;
using decide::Policy;
using Sentences = std::vector<std::string>;

Sentences mode_words(const Policy& policy) {
  switch (policy.mode) {
    case Mode::kEnforce:
      return {"What is decided is carried out."};
    case Mode::kAdvise:
      return {"Decisions are recorded with what would be done; nothing is carried out by itself."};
    case Mode::kObserve:
      return {"Everything is measured and recorded; nothing is carried out."};
  }
  return {};
}

Sentences cadence_words(const Policy& policy) {
  const Policy::Window& window = policy.window;
  if (window.every > 0) {
    const double cost = decide::shadow_cost(policy, window.steps, policy.economics.speedup, 0);
    return {
        fmt::format("Every {} steps, {} are replayed in BF16 and compared. That costs some "
                    "{:.0f}% of the compute of training (a window: {} BF16 steps, and loading and "
                    "evaluating like {} more), without long forks and audits; "
                    "verification.budget_percent does not apply.",
                    window.every, window.steps, 100 * cost / static_cast<double>(window.every),
                    window.steps, policy.economics.switch_steps)};
  }
  const int64_t every = decide::asked_lengths(policy, 0).every;
  return {fmt::format("All replays together take {}% of the compute of training. That pays a "
                      "window of {} steps every {} or so, if BF16 steps take {} times as long and "
                      "loading a checkpoint {} steps; both are measured, and how often then "
                      "follows from them.",
                      policy.verification.budget_percent, window.steps, every,
                      policy.economics.speedup, policy.economics.switch_steps),
          "Windows are close together after the start, a change of the plan and FP8's return, and "
          "then begin at random places. While faults are rare they move apart, to four times that "
          "at most. A suspicion or an incident takes the replays that it needs; later windows pay "
          "them back."};
}

Sentences promise_words(const Policy& policy, int64_t run_steps) {
  const double scale = policy.detector.prior_scale_percent;
  const decide::WindowLengths lengths = decide::asked_lengths(policy, 0);
  Sentences words{fmt::format(
      "A fault that costs over {}% of the loss in a window is caught by the first window that it "
      "fills, within {} steps.",
      policy.detector.ceiling_percent, lengths.every * 3 / 2 + lengths.steps)};
  for (const decide::Promise& promise : decide::promises(policy, lengths, scale)) {
    const bool too_late =
        run_steps > 0 && promise.within_steps && *promise.within_steps > run_steps;
    words.push_back(decide::promise_in_words(promise) +
                    (too_late ? " This run is over before that." : ""));
  }
  if (policy.ladder.from != "here" && policy.mode == decide::Mode::kEnforce)
    words.push_back(fmt::format(
        "A rollback then goes to the last verified checkpoint before the fault, mostly up to {} "
        "steps before it.",
        decide::rollback_steps(lengths)));
  if (policy.window.every == 0) {
    words.push_back(fmt::format(
        "Where few faults have let windows move apart, all of this takes up to {} times as long.",
        decide::kSparsest));
  }
  words.push_back("Not counted: how long verifiers take, and windows that pay incidents back.");
  words.push_back(fmt::format(
      "These promises assume that the gap of healthy windows varies by {}%; what the run shows "
      "replaces that.",
      scale));
  return words;
}

Sentences window_words(const Policy& policy, int64_t run_steps) {
  const Policy::Window& window = policy.window;
  Sentences words = cadence_words(policy);
  for (std::string& sentence : promise_words(policy, run_steps))
    words.push_back(std::move(sentence));
  if (const int64_t steps = decide::long_fork_steps(policy); steps > 0 && window.long_steps == 0) {
    words.push_back(fmt::format(
        "{:.0f}% of that budget goes into long forks of {} steps: they see damage that builds up "
        "slowly and stays in the weights.",
        100 * policy.verification.long_share, steps));
  }
  if (window.long_steps > 0) {
    words.push_back(fmt::format(
        "Every {} steps a long fork of {} steps looks for a bias too slow for a window.",
        window.long_every, window.long_steps));
  }
  words.push_back(fmt::format("While {} for verifiers, further ones are skipped.",
                              window.open_max == 1
                                  ? std::string("one window waits")
                                  : fmt::format("{} windows wait", window.open_max)));
  if (policy.verification.on_gradient_norm == "bf16") {
    words.push_back(
        "When the gradient norm leaves its forecast, the whole run goes to BF16 at once, without a "
        "replay.");
  }
  return words;
}

std::string detector_words(const Policy::Detector& d) {
  if (d.kind == "fixed") return fmt::format("one window is over {}%", d.fixed_percent);
  const std::string what = d.kind == "eprocess"
                               ? "the accumulated evidence for a mean gap over the tolerance is so "
                                 "strong"
                               : fmt::format("the {} statistic of the windows is so high", d.kind);
  return fmt::format("{} that healthy windows reach it once in {:.0f} on average", what,
                     d.windows_between_false_alarms);
}

Sentences alarm_words(const Policy& policy) {
  const Policy::Detector& d = policy.detector;
  Sentences words;
  words.push_back(fmt::format(
      "A gap is what the FP8 run's held-out loss is above the BF16 replay's. A mean gap of up to "
      "{}% is tolerated.",
      d.tolerance_percent));
  words.push_back(fmt::format("There is an alarm when {}, or when one window is over {}%.",
                              detector_words(d), d.ceiling_percent));
  if (d.kind == "eprocess" && d.jump_deviations > 0 && policy.triage.pairs > 0)
    words.push_back(fmt::format(
        "One window {} deviations over what is usual, and over the tolerance, is looked "
        "into as well; it counts only if nudged replays say that it was not chance.",
        d.jump_deviations));
  if (d.burst && d.kind == "eprocess")
    words.push_back("A suspicion is confirmed or dropped by windows taken back to back.");
  if (d.burn_in_steps > 0)
    words.push_back(
        fmt::format("In windows that begin before step {} only a gap over {}% raises an alarm.",
                    d.burn_in_steps, d.ceiling_percent));
  words.push_back(fmt::format(
      "A step is looked into when its loss is {} standard deviations, and 5%, above the trend of "
      "the {} steps before, {} times the largest of the first 100, or not finite.",
      d.spike_sigma, d.spike_history, d.spike_ratio));
  if (policy.instrument.every > 0)
    words.push_back(fmt::format(
        "Once in {} it is checked that the measurement itself is sound; while it is not, "
        "gaps lead to nothing.",
        counted(policy.instrument.every, "window")));
  return words;
}

std::string plural(int64_t count, const std::string& what) {
  return count == 1 ? what : what + "s";
}

Sentences triage_words(const Policy& policy) {
  Sentences words;
  words.push_back(fmt::format("Before FP8 is blamed, hardware, data{} are ruled out by replays.",
                              policy.triage.pairs > 0 ? ", kernels and chance" : " and kernels"));
  if (policy.triage.pairs > 0)
    words.push_back(fmt::format("Chance takes {} of replays from nudged weights.",
                                counted(policy.triage.pairs, "pair")));
  else
    words.push_back("Chance is not asked: one window over the ceiling is enough.");
  words.push_back(fmt::format(
      "After {} transient {} on one host within {} steps the next one counts as a broken host, and "
      "the run is held.",
      policy.triage.transients_max, plural(policy.triage.transients_max, "fault"),
      policy.triage.transient_steps));
  if (policy.detector.accept_percent > 0)
    words.push_back(
        fmt::format("A gap over the tolerance of {}% that will stay under {}% is "
                    "accepted all the same (detector.accept_percent; 0: never).",
                    policy.detector.tolerance_percent, policy.detector.accept_percent));
  return words;
}

Sentences action_words(const Policy& policy) {
  Sentences words;
  std::vector<std::string> rungs;
  for (const std::string& rung : policy.ladder.rungs)
    rungs.push_back(decide::rung_named(rung)->explain(policy));
  words.push_back(
      fmt::format("When FP8 is to blame: {}.", fmt::join(rungs, "; if that is not enough, ")));
  words.push_back(policy.ladder.from == "here"
                      ? "After harm by FP8 training goes on from where it stands, unless its "
                        "weights are not finite; after a fault of a machine or of data it goes "
                        "back to the last verified checkpoint."
                      : "Training goes back to the last verified checkpoint before the fault.");
  if (policy.ladder.from == "evidence") {
    words.push_back(
        "When windows before the alarm have added to it, it goes back to where the evidence began "
        "to rise, at most 16 windows; the checkpoints for that are kept.");
  }
  words.push_back(
      fmt::format("At most {} automatic {} in a run; then it is held. At most {} {} to one step; "
                  "then {}.",
                  policy.limits.actions_max, plural(policy.limits.actions_max, "action"),
                  policy.limits.rollbacks_to_same_step_max,
                  plural(policy.limits.rollbacks_to_same_step_max, "rollback"),
                  std::ranges::find(policy.ladder.rungs, "bf16") == policy.ladder.rungs.end()
                      ? "it is held"
                      : "the whole run goes to BF16 or, where that cannot help, it is held"));
  return words;
}

Sentences return_words(const Policy::Return& back) {
  if (!back.enabled) return {"FP8 never comes back by itself."};
  return {
      fmt::format(
          "After {} quiet {} the run's own FP8 plan is tried in replays. {} or more in a row, not "
          "all of one source where there are others, must show that it costs less than the "
          "tolerance and one deviation (evidence of at least {}); then FP8 comes back.",
          back.quiet_windows, plural(back.quiet_windows, "window"), back.probe_passes,
          back.evidence),
      fmt::format("A failed try, and a return, make the next wait {} times as long, up to {} "
                  "windows.",
                  back.backoff, back.quiet_windows_max)};
}

Sentences loss_words(const Policy& policy) {
  const auto words = [](const std::string& what) -> std::string {
    if (what == "continue") return "goes on as it is";
    return what == "bf16" ? "goes to BF16" : "pauses";
  };
  return {
      fmt::format("When the controller has been away for {} seconds the trainer {}, unless its own "
                  "file says otherwise.",
                  policy.controller.grace_seconds, words(policy.controller.on_loss)),
      fmt::format("When nobody has verified {} in a row the run {}.",
                  counted(policy.verifier.loss_windows, "window"), words(policy.verifier.on_loss))};
}

Sentences verifier_words(const Policy::Verifier& verifier) {
  Sentences words;
  words.push_back(verifier.requirements.empty()
                      ? std::string("Any verifier that can run what the run runs on may replay it.")
                      : fmt::format("Only verifiers with {} replay it.",
                                    fmt::join(verifier.requirements, ", ")));
  words.push_back(fmt::format(
      "Where runs compete for verifiers, this one gets {} times what a run with the default policy "
      "gets.",
      verifier.share));
  return words;
}

}  // namespace

std::vector<PolicySection> explain_policy(const Policy& policy, int64_t run_steps) {
  Sentences changes =
      changed_settings(list_settings(policy), list_settings(Policy()), "default", true);
  if (changes.empty()) changes.emplace_back("Nothing.");
  return {{"Mode", mode_words(policy)},
          {"What is verified", window_words(policy, run_steps)},
          {"Alarms", alarm_words(policy)},
          {"What an alarm is", triage_words(policy)},
          {"What is done", action_words(policy)},
          {"How FP8 comes back", return_words(policy.returning)},
          {"Who verifies", verifier_words(policy.verifier)},
          {"When parts are missing", loss_words(policy)},
          {"What differs from the default policy", std::move(changes)}};
}

}  // namespace gnomon::cli
