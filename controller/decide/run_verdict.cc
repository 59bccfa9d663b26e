#include "controller/decide/run_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "controller/decide/decide.h"
#include "controller/decide/plans.h"
#include "controller/decide/rungs.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::decide {
namespace {

// A share as it is compared: two digits, or "not finite".
std::string share(double percent) {
  return std::isfinite(percent) ? fmt::format("{:+.2f}%", percent) : std::string("not finite");
}

std::string words(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string verified_words(const State& s) {
  return s.last_verified
             ? fmt::format("verified up to step {} of {}", s.last_verified->step, s.newest_step)
             : std::string("no step is verified");
}

std::string measured_words(const State& s) {
  const Standing& standing = s.standing;
  if (standing.measured_windows == 0) return "no window has been measured yet";
  if (standing.last_window == 0)
    return fmt::format("the newest measured window ended at step {}", standing.measured_step);
  return fmt::format("window {} from step {} was the newest one measured, with a gap of {}",
                     standing.last_window, standing.last_start, share(standing.last_d_percent));
}

std::string next_window_words(const State& s, const Policy& policy) {
  const WindowLengths used = window_lengths(s, policy);
  const int64_t total = s.run.total_steps;
  if (total > 0 && s.next_start + used.steps > total) {
    return fmt::format("No further window ends before the run does, at step {}: {}.", total,
                       policy.window.every > 0 ? "window.every asks for none"
                                               : "verification.budget_percent pays for none");
  }
  return fmt::format("The next window is from step {} on, later ones every {} steps or so.",
                     s.next_start, used.every);
}

std::string good_sentence(const State& s, const Policy& policy) {
  if (s.registered && plan_of(s, s.plan_version).bf16)
    return "The run trains in BF16: there is no FP8 to verify. Nobody needs to do anything.";
  return fmt::format("FP8 keeps up with its BF16 shadow: {}; {}. {} Nobody needs to do anything.",
                     measured_words(s), verified_words(s), next_window_words(s, policy));
}

std::string starting_sentence(const State& s, const Policy& policy) {
  const auto open = std::ranges::find_if(
      s.windows, [](const WindowState& window) { return window.shadow_pending; });
  if (open != s.windows.end()) {
    return fmt::format(
        "No window has been measured yet: window {} (steps {} to {}) waits for its BF16 replay. "
        "Until then nothing is known of FP8 here. A gnomon-verifier must be running; else nobody "
        "needs to do anything.",
        open->id, open->start.step + 1, open->end_step());
  }
  const int64_t start = std::max(s.next_start, s.attempt.base_step);
  return fmt::format(
      "No window yet: the first one is expected at step {}. Until it is measured nothing is known "
      "of FP8 here. Nobody needs to do anything before.",
      start + window_lengths(s, policy).steps);
}

std::string unverified_sentence(const State& s, const Policy& policy) {
  if (s.watch.instrument.broken) {
    return std::string(s.watch.instrument.disputed
                           ? "The instrument is broken: BF16 replays of one window contradict each "
                             "other, or one verifier alone says what nothing bears out"
                           : "The instrument is broken: the same BF16 replay gave different bits") +
           ", so no gap is believed and nothing is done about any. Gnomon goes on checking the "
           "instrument. Look at the verifiers' machines, and start another verifier.";
  }
  const int64_t every = window_lengths(s, policy).every;
  std::string why;
  if (!s.replays.empty()) {
    why = fmt::format(
        "{} replay{} wait{} for verifiers, and Gnomon goes on offering {}. Start gnomon-verifiers, "
        "or find out why those that run do not answer or are too slow",
        s.replays.size(), s.replays.size() == 1 ? "" : "s", s.replays.size() == 1 ? "s" : "",
        s.replays.size() == 1 ? "it" : "them");
  } else if (s.checkpoints.empty() || s.checkpoints.back().step < s.newest_step - every) {
    why = fmt::format(
        "no window could be opened, since {}. Find out why the trainer writes no checkpoints",
        s.checkpoints.empty()
            ? std::string("no checkpoint was reported")
            : fmt::format("the newest checkpoint is of step {}", s.checkpoints.back().step));
  } else {
    why = s.standing.unmeasured.empty()
              ? "no replay waits. Look at `gnomon windows` for why the windows were skipped"
              : fmt::format("the newest replay could not be used: {}", s.standing.unmeasured);
  }
  return fmt::format(
      "{}: {} steps since step {} without a measured window, the policy asks for one every {}. "
      "What FP8 does there is not known; {}.",
      s.standing.measured_windows == 0 ? "Nobody verifies this run" : "Verification is behind",
      s.newest_step - s.standing.measured_step, s.standing.measured_step, every, why);
}

std::string harmful_sentence(const State& s, const Policy& policy) {
  const std::string what = s.standing.harm == "alarm" || s.standing.harm.empty()
                               ? std::string("An alarm stands")
                               : fmt::format("Harm was found ({})", words(s.standing.harm));
  if (s.directive) {
    return fmt::format(
        "{} and is not contained yet: directive {} ({}) waits for the trainer. If it is not "
        "applied soon, look at the trainer.",
        what, s.directive->number, s.directive->kind);
  }
  if (s.containment && s.containment->rung == "hold") {
    return fmt::format(
        "{}, and the trainer goes on although the run is on hold. Stop or pause the job.", what);
  }
  const Mode mode = mode_in_force(s, policy);
  std::string why = "nothing else could be done";
  if (s.silence) {
    why = fmt::format("{} has silenced the detectors", s.silence->owner);
  } else if (s.operator_plan) {
    why = fmt::format("the plan set by {} is in force", s.operator_plan->owner);
  } else if (mode != Mode::kEnforce) {
    why = fmt::format("the mode is {}", mode_name(mode));
  }
  return fmt::format(
      "{}; nothing is done about it, because {}. A person must decide: `gnomon decisions` says "
      "what was found, `gnomon override` acts.",
      what, why);
}

std::string investigation_sentence(const State& s) {
  if (!s.investigation) {
    return fmt::format(
        "Step {} is suspicious and waits to be looked into. Gnomon replays it as soon as it can. "
        "Nobody needs to do anything yet.",
        s.suspicion->finding.step);
  }
  const Case& open = *s.investigation;
  const auto window = std::ranges::find(s.windows, open.window, &WindowState::id);
  std::string what = fmt::format("window {}", open.window);
  if (window != s.windows.end())
    what += fmt::format(" (steps {} to {})", window->start.step + 1, window->end_step());
  if (open.evidence.finding) what = fmt::format("step {}", open.evidence.finding->step);
  return fmt::format(
      "An alarm in {} is being investigated ({}, {} awaited); training goes on. Nobody needs to do "
      "anything as long as verifiers answer.",
      what, open.stage, counted(std::ssize(s.replays), "replay"));
}

std::string contained_sentence(const State& s) {
  if (!s.containment) {
    return "The run was rolled back after a fault and goes on as before; the next quiet window "
           "shows whether that was enough. Nobody needs to do anything.";
  }
  const Containment& in = *s.containment;
  const ActionName rung = in.rung;
  const Rung* const known = rung_named(rung);
  const std::string what = known != nullptr ? known->describe(in.sites) : std::string(rung);
  if (rung == "hold") {
    return "The run is on hold, and its trainer stands still. Look at `gnomon decisions`; `gnomon "
           "override` with resume lets it go on.";
  }
  return fmt::format("FP8 did harm and is contained: {}. {} Nobody needs to do anything.", what,
                     !in.recovered ? "No quiet window has shown yet that this is enough."
                     : in.stays    ? "It stays so."
                                   : "The damage is gone; FP8 comes back when probes pass.");
}

std::string held_sentence(const State& s) {
  const bool by_gnomon = s.containment && s.containment->rung == "hold";
  return fmt::format(
      "Training stands still at step {}: {}. It stays so until a person orders `gnomon override` "
      "with resume.",
      s.newest_step,
      by_gnomon ? "Gnomon holds it, because nothing else was left to do (`gnomon decisions`)"
                : "it was paused by an operator");
}

std::string sentence_of(std::string_view condition, const State& s, const Policy& policy) {
  if (condition == "good") return good_sentence(s, policy);
  if (condition == "starting") return starting_sentence(s, policy);
  if (condition == "unverified") return unverified_sentence(s, policy);
  if (condition == "harmful") return harmful_sentence(s, policy);
  if (condition == "under_investigation") return investigation_sentence(s);
  if (condition == "contained") return contained_sentence(s);
  if (condition == "held") return held_sentence(s);
  if (condition == "unstable") {
    return "Training diverges in BF16 as well as in FP8: precision is not the cause. Gnomon "
           "changes no precision for it. Look at the learning rate and the data.";
  }
  return fmt::format("The run has ended at step {}.", s.newest_step);
}

VerdictKind kind_of(std::string_view condition) {
  for (const VerdictKind kind : kVerdictKinds) {
    if (condition == verdict_name(kind)) return kind;
  }
  return VerdictKind::kUnverified;
}

int64_t count_unapplied(const State& s) {
  int64_t count = s.standing.directives_unapplied;
  if (s.directive && s.directive->silence_recorded) ++count;
  for (const PendingDirective& open : s.operator_directives) count += open.silence_recorded ? 1 : 0;
  return count;
}

double silent_at(const VerdictFacts& facts) {
  return facts.reported_at + facts.silent_after_seconds;
}

}  // namespace

std::string_view verdict_name(VerdictKind kind) {
  constexpr std::string_view kNames[] = {"good",      "harmful",    "under_investigation",
                                         "contained", "unverified", "silent",
                                         "held",      "unstable",   "ended"};
  static_assert(std::size(kNames) == kVerdictKinds.size());
  return kNames[static_cast<size_t>(kind)];
}

double mean_step_seconds(const State& s) {
  const Account& account = s.money.account;
  const auto mean = [](const StepTimes& kind) {
    double sum = 0;
    for (const double seconds : kind.recent) sum += seconds;
    return kind.recent.empty() ? 0 : sum / static_cast<double>(kind.recent.size());
  };
  // The mean for the precision in force; the largest of all until that one has steps.
  double said = 0;
  if (s.registered) {
    const KnownPlan& plan = plan_of(s, s.plan_version);
    said = mean(plan.bf16                              ? account.bf16
                : plan.version == base_plan(s).version ? account.fp8
                                                       : account.pinned);
  }
  if (said == 0) said = std::max({mean(account.fp8), mean(account.pinned), mean(account.bf16)});
  // The longest time between two reports is left out: it may be an outage or a pause.
  const std::vector<double>& at = s.standing.steps_at;
  if (at.size() < 4) return said;
  double longest = 0;
  for (size_t i = 1; i < at.size(); ++i) longest = std::max(longest, at[i] - at[i - 1]);
  const double pace = (at.back() - at.front() - longest) / static_cast<double>(at.size() - 2);
  return std::max(said, pace);
}

VerdictFacts verdict_facts(const State& s, const Policy& policy) {
  const std::string_view condition = condition_of(s, policy);
  const Standing& standing = s.standing;
  VerdictFacts facts;
  facts.standing.kind = kind_of(condition);
  facts.standing.since = condition == standing.condition ? standing.since : standing.reported_at;
  facts.standing.sentence = sentence_of(condition, s, policy);
  facts.reported_at = standing.reported_at > 0 ? standing.reported_at : s.money.last_step_at;
  facts.reports_due = condition != "held" && condition != "ended" && facts.reported_at > 0;
  facts.step_seconds = mean_step_seconds(s);
  facts.silent_after_seconds = std::max(kSilentSecondsMin, kSilentSteps * facts.step_seconds);
  facts.newest_step = s.newest_step;
  const int64_t verified = s.last_verified ? s.last_verified->step : standing.first_base;
  facts.verified = s.last_verified.has_value();
  facts.lag_steps = std::max<int64_t>(0, s.newest_step - verified);
  facts.every_steps = window_lengths(s, policy).every;
  facts.replays_waiting = std::ssize(s.replays);
  facts.directives_unapplied = count_unapplied(s);
  facts.quarantined_verifiers = std::ssize(s.trust.quarantined);
  facts.instrument_broken = s.watch.instrument.broken;
  return facts;
}

VerdictKind verdict_kind(const VerdictFacts& facts, double now, double busy_until) {
  const bool silent = facts.reports_due && now > silent_at(facts) && now > busy_until;
  return silent ? VerdictKind::kSilent : facts.standing.kind;
}

RunVerdict run_verdict(const VerdictFacts& facts, double now, double busy_until) {
  if (verdict_kind(facts, now, busy_until) != VerdictKind::kSilent) return facts.standing;
  const std::string pace = facts.step_seconds > 0
                               ? fmt::format("a step takes {:.3g} s", facts.step_seconds)
                               : std::string("how long a step takes is not known");
  return {VerdictKind::kSilent, std::max(silent_at(facts), busy_until),
          fmt::format("The trainer has reported nothing for {} ({}, the newest was step {}): it is "
                      "dead, hangs, or cannot reach gnomond. Gnomon keeps the run ready for it. "
                      "Look at the job; if it is gone for good, `gnomon runs end` says so.",
                      duration(now - facts.reported_at), pace, facts.newest_step)};
}

RunVerdict ended_verdict(const VerdictFacts& facts, const std::string& outcome, double ended_at) {
  std::string sentence =
      fmt::format("The run has ended ({}) at step {}. ", outcome, facts.newest_step);
  if (!facts.verified) {
    sentence += "No step of it is verified.";
  } else if (facts.lag_steps == 0) {
    sentence += "All of it is verified.";
  } else {
    sentence += fmt::format("It is verified up to step {}; what follows, {}, is not.",
                            facts.newest_step - facts.lag_steps, counted(facts.lag_steps, "step"));
  }
  return {VerdictKind::kEnded, ended_at, std::move(sentence)};
}

}  // namespace gnomon::decide
