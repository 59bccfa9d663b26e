#include <fmt/format.h>

#include <algorithm>

#include "controller/decide/core.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

bool refused_before(const State& s, const std::string& uri) {
  return std::find(s.refused_bases.begin(), s.refused_bases.end(), uri) != s.refused_bases.end();
}

void remember_refused(State& s, const PendingDirective& refused) {
  for (RollbackCount& known : s.rollbacks) {
    if (known.step == refused.to_step && known.count > 0) known.count -= 1;
  }
  if (refused_before(s, refused.checkpoint_uri)) return;
  if (s.refused_bases.size() >= kRefusedBasesMax) s.refused_bases.erase(s.refused_bases.begin());
  s.refused_bases.push_back(refused.checkpoint_uri);
}

}  // namespace

int64_t rollbacks_to(const State& s, int64_t step) {
  for (const RollbackCount& known : s.rollbacks) {
    if (known.step == step) return known.count;
  }
  return 0;
}

void count_rollback(State& s, int64_t step) {
  for (RollbackCount& known : s.rollbacks) {
    if (known.step != step) continue;
    known.count += 1;
    return;
  }
  if (s.rollbacks.size() >= kRollbackCountsMax) s.rollbacks.erase(s.rollbacks.begin());
  s.rollbacks.push_back({step, 1});
}

std::optional<KnownCheckpoint> good_checkpoint(const State& s, int64_t newest) {
  if (!s.last_verified) return std::nullopt;
  std::optional<KnownCheckpoint> best;
  const auto consider = [&](const KnownCheckpoint& known) {
    if (known.step > newest || refused_before(s, known.uri)) return;
    if (!best || known.step > best->step) best = known;
  };
  consider(*s.last_verified);
  for (const KnownCheckpoint& known : s.older_verified) consider(known);
  // What lies before a verified checkpoint was verified as well.
  for (const KnownCheckpoint& known : s.checkpoints) {
    if (known.step < s.last_verified->step) consider(known);
  }
  return best;
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
        "Action: training is paused. The run could not go back to step {} and no older good "
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
      "Action: the run could not go back to step {}; from step {}, the next older good "
      "checkpoint, again ({} steps lost).",
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
