#include "controller/decide/ladder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "controller/decide/bases.h"
#include "controller/decide/case.h"
#include "controller/decide/containment.h"
#include "controller/decide/costs.h"
#include "controller/decide/directives.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/kept_damage.h"
#include "controller/decide/plans.h"
#include "controller/decide/rungs.h"
#include "controller/decide/standing.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

// What is to be done about a verdict.
struct Action {
  ActionName rung;                        // rollback (same plan), pin, bf16, hold
  std::optional<KnownCheckpoint> target;  // absent: from here
  std::vector<std::string> sites;
  bool non_finite = false;
  std::string why;  // when a limit had its say
};

bool has_rung(const Core& core, ActionName rung) {
  const auto& rungs = core.policy.ladder.rungs;
  return std::ranges::find(rungs, rung.text()) != rungs.end();
}

// The first rung above the one the run stands on; "hold" above the last. A run with pinned sites
// stays on its rung as long as more of them may be pinned: what is still harmful has another site.
ActionName next_rung(const Core& core, bool pin_possible) {
  const auto& rungs = core.policy.ladder.rungs;
  const Capabilities& can = core.s.run.capabilities;
  pin_possible = pin_possible && can.plan != "run";
  const auto possible = [&](ActionName rung) {
    return rung == "pin" ? pin_possible : rung != "rollback" || can.rollback != "none";
  };
  size_t next = 0;
  if (core.s.containment) {
    const auto stands = std::ranges::find(rungs, core.s.containment->rung.text());
    if (stands != rungs.end()) next = static_cast<size_t>(stands - rungs.begin()) + 1;
    const int64_t pinned = count_units(core.s.run, pinned_sites(core.s));
    const bool room = pinned > 0 && pinned < core.policy.attribution.sites_max;
    if (next > 0 && rungs[next - 1] == "pin" && room && pin_possible) next -= 1;
  }
  while (next < rungs.size() && !possible(ActionName::on_record(rungs[next]))) next += 1;
  return next < rungs.size() ? ActionName::on_record(rungs[next]) : ActionName("hold");
}

// Where the evidence of an alarm began to rise, when windows before it have added to it.
std::optional<int64_t> rising_since(const Core& core, const WindowState& window) {
  const Case& investigation = *core.s.investigation;
  const bool of_gap = investigation.evidence.trigger == "gap" && window.kind == "shadow";
  if (core.policy.ladder.from != "evidence" || !of_gap || investigation.since_step) return {};
  return evidence_rises_after(core.s, window.id, risen_evidence(core.policy));
}

// The newest checkpoint that the fault cannot have reached.
KnownCheckpoint rollback_target(const Core& core, const WindowState& window) {
  const State& s = core.s;
  const Case& investigation = *s.investigation;
  const auto& finding = investigation.evidence.finding;
  const bool from_step = finding && !spoilt_before(investigation.evidence);
  int64_t newest = from_step ? finding->step - 1 : window.start.step;
  if (investigation.since_step) newest = *investigation.since_step - 1;
  newest = std::min(newest, rising_since(core, window).value_or(newest));
  const bool kept = is_kept(window);
  if (kept) newest = std::min(newest, s.watch.stability.lowest_step);
  if (const auto good = good_checkpoint(s, newest)) return *good;
  const auto oldest = kept ? oldest_good_checkpoint(s) : std::nullopt;
  return oldest && oldest->step < window.start.step ? *oldest : window.start;
}

// BF16 mends what FP8 does, and is the safe side where nobody can say; it mends no data and no
// machine.
bool bf16_may_help(VerdictName verdict) {
  return verdict == "fp8_numerics" || verdict == "kernel_bug" || verdict == "scale_drift" ||
         verdict == "unexplained";
}

// What is left when the run cannot go back: BF16 from here on, if that may help, or a person.
void stay_here(const Core& core, int64_t plan_version, VerdictName verdict, std::string why,
               Action& action) {
  action.why = std::move(why);
  action.target.reset();
  const bool bf16_left = has_rung(core, "bf16") && !plan_of(core.s, plan_version).bf16;
  if (bf16_may_help(verdict) && bf16_left && !action.non_finite) {
    action.rung = "bf16";
    return;
  }
  action.rung = "hold";
  if (verdict == "data_mismatch")
    action.why += "; BF16 mends no data: look at how the data is loaded";
  if (verdict == "transient_fault")
    action.why += "; BF16 mends no machine: look at the host, or move the run to another one";
}

// A rollback that has been tried too often is not tried again, and none goes to a checkpoint that
// the damage had reached.
void limit_rollbacks(const Core& core, int64_t plan_version, VerdictName verdict, Action& action) {
  if (!action.target || action.rung == "hold") return;
  const State& s = core.s;
  const int64_t step = action.target->step;
  const int64_t dirty = s.watch.dirty_since;
  if (!good_checkpoint(s, step) && dirty >= 0 && dirty < step) {
    return stay_here(core, plan_version, verdict,
                     fmt::format("no checkpoint before step {}, from which on windows lost more "
                                 "than is tolerated, is left",
                                 dirty),
                     action);
  }
  const int64_t done = rollbacks_to(s, step);
  if (done < core.policy.limits.rollbacks_to_same_step_max) return;
  stay_here(core, plan_version, verdict,
            fmt::format("step {} has been gone back to {} time(s) already", step, done), action);
}

// A change of recipe is on the ladder, and the run is not in that recipe already.
bool recipe_helps(const Core& core) {
  return has_rung(core, "recipe") && !(core.s.containment && core.s.containment->rung == "recipe");
}

Action choose(const Core& core, VerdictName verdict, const std::vector<std::string>& sites) {
  const State& s = core.s;
  const Case& investigation = *s.investigation;
  const WindowState& window = *find_window(core.s, investigation.window);
  Action action;
  const TriageEvidence& evidence = investigation.evidence;
  action.non_finite = evidence.trigger == "non_finite" ||
                      (evidence.measured.d_percent && !std::isfinite(*evidence.measured.d_percent));
  if (action.why = limit_of_actions(core); !action.why.empty()) {
    action.rung = "hold";
    return action;
  }
  if (evidence.trigger == "offset") {
    action.rung = "recipe";
    return action;
  }
  if (verdict == "persistent_fault") {
    action.rung = "hold";
    action.why = fmt::format("the run must go to another host; its last good checkpoint is step {}",
                             rollback_target(core, window).step);
    return action;
  }
  const bool same_plan = verdict == "transient_fault" || verdict == "data_mismatch";
  action.rung = same_plan ? "rollback" : next_rung(core, !sites.empty());
  if (action.rung == "bf16" && plan_of(s, window.plan_version).bf16) action.rung = "hold";
  const bool needs_rollback = action.rung == "rollback" || action.non_finite;
  if (s.run.capabilities.rollback == "none") {
    if (needs_rollback)
      stay_here(core, window.plan_version, verdict, "its trainer cannot go back", action);
  } else if (needs_rollback || core.policy.ladder.from != "here") {
    action.target = rollback_target(core, window);
    if (rising_since(core, window)) action.why = "where the evidence began to rise";
  }
  limit_rollbacks(core, window.plan_version, verdict, action);
  const Rung* const rung = rung_named(action.rung);
  if (rung != nullptr && rung->make_plan == nullptr) action.target.reset();  // training halts
  if (action.rung != "pin") return action;
  action.sites = pinned_sites(s);  // they stay
  action.sites.insert(action.sites.end(), sites.begin(), sites.end());
  std::ranges::sort(action.sites);
  const auto twice = std::ranges::unique(action.sites);
  action.sites.erase(twice.begin(), twice.end());
  return action;
}

std::string action_words(const Core& core, const Action& action) {
  const Rung* const rung = rung_named(action.rung);
  const RungChange change{core.policy, core.s.run, base_plan(core.s).toml, action.sites};
  std::string words = rung != nullptr ? rung->announce(change) : "the same plan";
  if (rung == nullptr || rung->make_plan != nullptr) {
    words += rung == nullptr ? " " : ", ";
    words += action.target
                 ? fmt::format("from step {} again, {} steps back", action.target->step,
                               std::max<int64_t>(0, core.s.newest_step - action.target->step))
                 : std::string("from here on");
  }
  if (!action.why.empty()) words += fmt::format(" ({})", action.why);
  return words;
}

// The step up to which nothing of the harm was seen.
int64_t harm_after(State& s, const Case& investigation) {
  if (investigation.since_step) return *investigation.since_step - 1;
  if (investigation.evidence.finding) return investigation.evidence.finding->step - 1;
  return find_window(s, investigation.window)->start.step;
}

// Damage that is found by what it adds up to, and that one window bears: a probe would not see it.
bool unseen_by_probes(const Core& core) {
  const Case& investigation = *core.s.investigation;
  const WindowState& window = *find_window(core.s, investigation.window);
  return is_kept(window) && investigation.evidence.measured.d_percent &&
         level_of(investigation.evidence) <= core.policy.detector.tolerance_percent;
}

void carry_out(Core& core, const Action& action, const KnownPlan& plan, const std::string& why) {
  State& s = core.s;
  PendingDirective pending;
  pending.non_finite = action.non_finite;
  pending.plan_version = plan.version;
  const Rung* const rung = rung_named(action.rung);
  if (rung != nullptr && rung->make_plan == nullptr)
    return hold(core, why, DirectiveKind::on_record(rung->halts));
  s.actions += 1;
  if (action.rung != "rollback") {
    contain(core, action.rung, action.sites, plan.version);
    if (s.investigation) {
      const TriageEvidence& evidence = s.investigation->evidence;
      s.containment->stays = evidence.trigger == "offset" || unseen_by_probes(core);
      if (evidence.trigger == "gap") s.containment->level_percent = level_of(evidence);
    }
    remember_plan(s, plan.version, plan.toml);
  }
  s.recovery = Recovery{action.rung, action.target.has_value(), 0, plan.version,
                        action.target ? action.target->step : -1};
  if (action.target && s.investigation) s.recovery->harm_step = harm_after(s, *s.investigation);
  pending.purpose = action.rung == "rollback" ? DirectivePurpose("transient") : "contain";
  pending.kind = action.target ? DirectiveKind("rollback") : "set_plan";
  if (action.target) {
    pending.to_step = action.target->step;
    pending.checkpoint_uri = action.target->uri;
    count_rollback(s, action.target->step);
  }
  issue(core, pending, plan.toml, why);
}

KnownPlan make_plan(Core& core, const Action& action, int64_t window_plan) {
  const KnownPlan& before = plan_of(core.s, window_plan);
  const Rung* const rung = rung_named(action.rung);
  if (rung == nullptr || rung->make_plan == nullptr) return before;
  KnownPlan plan;
  plan.version = core.s.next_plan_version;
  if (core.enforcing()) core.s.next_plan_version += 1;
  plan.toml = rung->make_plan({core.policy, core.s.run, before.toml, action.sites, plan.version});
  return plan;
}

}  // namespace

bool next_rung_pins(const Core& core) { return next_rung(core, true) == "pin"; }

void respond(Core& core, VerdictName verdict, const std::vector<std::string>& sites) {
  State& s = core.s;
  if (s.investigation->evidence.trigger == "offset" && !recipe_helps(core)) {
    const std::string look = verdict == "kernel_bug"
                                 ? " Look at what the FP8 GEMMs are made of: their library, and "
                                   "the copies of the weights that they read (are they made "
                                   "anew after every update?)."
                                 : "";
    core.record(
            "accept",
            "The ladder has no other recipe to change to: it is recorded and training goes on." +
                look,
            {{"verdict", verdict}})
        .verdict = verdict;
    return end_case(core, "quiet");
  }
  note_harm(s, verdict);
  const Action action = choose(core, verdict, sites);
  const int64_t window_id = s.investigation->window;
  const KnownPlan plan = make_plan(core, action, find_window(s, window_id)->plan_version);
  std::string words = action_words(core, action);
  if (core.enforcing() && action.rung != "pin")
    words.front() = static_cast<char>(std::toupper(words.front()));  // a site keeps its name
  const std::string sentence =
      core.enforcing() ? words + "."
                       : fmt::format("Nothing is done in mode {}; enforced it would be: {}.",
                                     mode_name(core.policy.mode), words);
  json::object evidence{
      {"rung", action.rung},
      {"to_step", action.target ? json::value(action.target->step) : json::value(nullptr)},
      {"plan_version", plan.version},
      {"actions_before", s.actions},
      {"rollbacks_to_step_before",
       action.target ? json::value(rollbacks_to(s, action.target->step)) : json::value(nullptr)}};
  if (json::array batches = other_batches(*s.investigation); !batches.empty())
    evidence["batches"] = std::move(batches);
  RecordDecision& decision = core.record("action", sentence, evidence);
  decision.verdict = verdict;
  decision.action = action.rung;
  decision.enforced = core.enforcing();
  decision.window = window_id;
  decision.sites = sites;
  if (!core.enforcing()) {
    s.fault_reported = true;
    return end_case(core, "alarm");
  }
  s.suspicion.reset();
  restart_gap(s.watch.gap);
  restart_gap(s.watch.long_gap);
  s.watch.burst_left = 0;
  const bool of_fp8 = verdict == "fp8_numerics" || verdict == "kernel_bug";
  if (of_fp8 || verdict == "scale_drift") count_fault(core);
  carry_out(core, action, plan, sentence);
  end_case(core, "alarm");
}

void go_back_unexplained(Core& core, int64_t step, const std::string& why) {
  State& s = core.s;
  Action action;
  action.rung = "rollback";
  action.non_finite = true;
  action.target = good_checkpoint(s, step - 1);
  action.why = limit_of_actions(core);
  if (action.why.empty() && s.run.capabilities.rollback == "none") {
    action.why = "its trainer cannot go back";
  } else if (action.why.empty() && !action.target) {
    action.why = "no good checkpoint is left";
  }
  if (!action.why.empty()) action.rung = "hold";
  limit_rollbacks(core, s.plan_version, "unexplained", action);
  if (action.rung == "hold") action.target.reset();
  const std::string words = action_words(core, action);
  const std::string sentence =
      core.enforcing() ? fmt::format("{}: {}.", why, words)
                       : fmt::format("{}. Nothing is done in mode {}; enforced it would be: {}.",
                                     why, mode_name(core.policy.mode), words);
  RecordDecision& decision = core.record(
      "action", sentence,
      {{"rung", action.rung},
       {"step", step},
       {"to_step", action.target ? json::value(action.target->step) : json::value(nullptr)}});
  decision.verdict = "unexplained";
  decision.action = action.rung;
  decision.enforced = core.enforcing();
  s.fault_reported = !core.enforcing();
  if (core.enforcing()) carry_out(core, action, KnownPlan(plan_of(s, s.plan_version)), sentence);
}

void go_further_back(Core& core, const PendingDirective& refused) {
  State& s = core.s;
  remember_refused(s, refused);
  std::optional<KnownCheckpoint> older = good_checkpoint(s, refused.to_step - 1);
  while (older && rollbacks_to(s, older->step) >= core.policy.limits.rollbacks_to_same_step_max) {
    older = good_checkpoint(s, older->step - 1);
  }
  if (!older) {
    const std::string sentence = fmt::format(
        "Training is paused. The run could not go back to step {} and no older good "
        "checkpoint is left, so the weights since then are in doubt. A person must look: make a "
        "checkpoint at or before step {} readable, restart the run from it and resume, or resume "
        "and "
        "accept the weights as they are.",
        refused.to_step, refused.to_step);
    RecordDecision& decision = core.record("action", sentence,
                                           {{"rung", "hold"},
                                            {"refused_step", refused.to_step},
                                            {"refused_checkpoint", refused.checkpoint_uri}});
    decision.action = "hold";
    decision.enforced = true;
    return hold(core, sentence);
  }
  const std::string sentence = fmt::format(
      "The run could not go back to step {}. It goes on from step {}, the next older good "
      "checkpoint, {} steps back.",
      refused.to_step, older->step, std::max<int64_t>(0, s.newest_step - older->step));
  RecordDecision& decision = core.record("action", sentence,
                                         {{"rung", "rollback"},
                                          {"to_step", older->step},
                                          {"refused_step", refused.to_step},
                                          {"refused_checkpoint", refused.checkpoint_uri}});
  decision.action = "rollback";
  decision.enforced = true;
  PendingDirective next = refused;
  next.to_step = older->step;
  next.checkpoint_uri = older->uri;
  const ActionName rung = refused.purpose == "transient" || !s.containment ? ActionName("rollback")
                                                                           : s.containment->rung;
  s.recovery = Recovery{rung, true, 0, refused.plan_version, older->step};
  count_rollback(s, older->step);
  issue(core, std::move(next), plan_of(s, refused.plan_version).toml, sentence);
}

}  // namespace gnomon::decide
