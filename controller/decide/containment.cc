#include "controller/decide/containment.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "controller/decide/directives.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kRelapseWindows = 16;  // an alarm this soon after a return finds the longer wait

}  // namespace

std::string limit_of_actions(const Core& core) {
  const int most = core.policy.limits.actions_max;
  if (core.s.actions < most) return {};
  return fmt::format("the limit of {} automatic actions is reached", most);
}

std::vector<std::string> pinned_sites(const State& s) {
  const bool pinned = s.containment && s.containment->rung == "pin";
  return pinned ? s.containment->sites : std::vector<std::string>();
}

void contain(Core& core, ActionName rung, const std::vector<std::string>& sites,
             int64_t plan_version) {
  State& s = core.s;
  if (!s.containment) {
    const bool relapse = s.quiet_since_return >= 0 && s.quiet_since_return < kRelapseWindows;
    if (!relapse) s.wait_windows = core.policy.returning.quiet_windows;
  }
  s.quiet_since_return = -1;
  Containment containment;
  containment.rung = rung;
  containment.sites = sites;
  containment.plan_version = plan_version;
  containment.probes.from_replay = s.next_replay;
  containment.accepted_percent = std::max(s.watch.gap.scale.accepted_percent,
                                          s.containment ? s.containment->accepted_percent : 0);
  s.containment = std::move(containment);
}

void leave_fp8(Core& core, const std::string& seen, boost::json::object evidence, bool holds) {
  State& s = core.s;
  const std::string limit = limit_of_actions(core);
  holds |= !limit.empty();
  const std::string sentence =
      fmt::format("{}; {}, as the policy wants it{}.", seen,
                  holds ? "training is paused" : "the whole run goes to BF16 from here on",
                  limit.empty() ? "" : " (" + limit + ")");
  RecordDecision& decision = core.record("action", sentence, std::move(evidence));
  decision.action = holds ? ActionName("hold") : "bf16";
  decision.enforced = true;
  if (holds) return hold(core, sentence);
  s.actions += 1;
  const int64_t version = s.next_plan_version++;
  const std::string plan = bf16_plan(version);
  contain(core, "bf16", {}, version);
  remember_plan(s, version, plan);
  s.recovery = Recovery{"bf16", false, 0, version, -1};
  PendingDirective pending;
  pending.kind = "set_plan";
  pending.purpose = "contain";
  pending.plan_version = version;
  issue(core, std::move(pending), plan, sentence);
}

void hold(Core& core, const std::string& why, DirectiveKind directive) {
  State& s = core.s;
  s.actions += 1;
  s.hold_due = false;
  contain(core, "hold", {}, s.plan_version);
  s.recovery.reset();
  PendingDirective pending;
  pending.kind = directive;
  pending.purpose = "hold";
  issue(core, std::move(pending), "", why);
}

void hold_if_due(Core& core) {
  State& s = core.s;
  if (!s.hold_due) return;
  const auto is_open = [&](DirectiveKind kind) {
    const auto open = [&](const PendingDirective& known) { return known.kind == kind; };
    return (s.directive && open(*s.directive)) ||
           std::any_of(s.operator_directives.begin(), s.operator_directives.end(), open);
  };
  if (!core.held() || s.ended || is_open("pause")) s.hold_due = false;
  if (!s.hold_due || is_open("resume") || s.directive) return;
  if (!core.enforcing() || !core.muted().empty()) return;  // when that is over
  s.hold_due = false;
  const std::string why = fmt::format(
      "The run is still on hold: attempt {} is paused too. A person must look; a resume ends the "
      "hold.",
      s.attempt.number);
  core.record("directive", why, {{"attempt", s.attempt.number}, {"step", s.newest_step}});
  PendingDirective pending;
  pending.kind = "pause";
  pending.purpose = "hold";
  issue(core, std::move(pending), "", why);
}

std::optional<Containment> standing_in(const State& s, int64_t plan_version) {
  const KnownPlan& plan = plan_of(s, plan_version);
  if (plan.version == base_plan(s).version) return std::nullopt;
  Containment containment;
  containment.rung = plan.bf16 ? ActionName("bf16") : "pin";
  containment.plan_version = plan.version;
  containment.probes.from_replay = s.next_replay;
  containment.accepted_percent = s.watch.gap.scale.accepted_percent;
  containment.recovered = true;
  if (plan.bf16) return containment;
  const std::vector<std::string> left = fp8_sites(s.run, plan.toml);
  for (std::string& site : fp8_sites(s.run, base_plan(s).toml)) {
    const bool in_bf16 = std::find(left.begin(), left.end(), site) == left.end();
    if (in_bf16) containment.sites.push_back(std::move(site));
  }
  return containment;
}

int64_t wanted_plan(const State& s) {
  return plan_of(s, s.containment ? s.containment->plan_version : 0).version;
}

void forget_probes_of(State& s, const std::string& verifier) {
  if (!s.containment) return;
  std::erase_if(s.containment->probes.passed,
                [&](const PassedProbe& probe) { return probe.source == verifier; });
  s.containment->probes.nobody_else = s.containment->probes.others_cannot = false;
}

void forget_probes_of_steps(State& s, int64_t first, int64_t last) {
  if (!s.containment) return;
  std::erase_if(s.containment->probes.passed, [&](const PassedProbe& probe) {
    return probe.start_step < last && first <= probe.end_step;
  });
}

}  // namespace gnomon::decide
