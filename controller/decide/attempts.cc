#include "controller/decide/attempts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "controller/decide/case.h"
#include "controller/decide/containment.h"
#include "controller/decide/costs.h"
#include "controller/decide/directives.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/health.h"
#include "controller/decide/ladder.h"
#include "controller/decide/schedule.h"
#include "controller/decide/spending.h"
#include "controller/decide/stability.h"
#include "controller/decide/window_lengths.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

std::string gone_back(int64_t base) { return fmt::format("the run went back to step {}", base); }

bool may_go_back(const Core& core) {
  return !core.s.paused && !core.held() && !core.s.directive && core.muted().empty();
}

// The run had ended and goes on: what its end has cut off is taken up.
void take_up(Core& core, int64_t base_step) {
  State& s = core.s;
  s.ended = false;
  std::optional<Containment>& contained = s.containment;
  if (contained && !contained->recovered && contained->rung != "hold" && !s.recovery)
    s.recovery = Recovery{
        .rung = contained->rung, .plan_version = contained->plan_version, .harm_step = base_step};
  const int64_t owed = std::exchange(s.standing.owed_step, -1);
  if (owed < 0 || base_step <= owed || !may_go_back(core)) return;
  go_back_unexplained(core, owed + 1,
                      fmt::format("The run ended before it could go back to step {}", owed));
}

// Somebody said that the trainer was gone for good, and it was not: it is supervised again.
void continue_attempt(Core& core, const AttemptStarted& event) {
  State& s = core.s;
  if (!s.ended || event.attempt != s.attempt.number) {
    return core.explain(fmt::format("Attempt {} has not ended.", event.attempt));
  }
  s.plan_version = event.plan_version;
  note_plan(core, event.plan_version);
  s.next_start = first_start(core, event.base_step);
  take_up(core, event.base_step);
}

}  // namespace

void start_attempt(Core& core, const AttemptStarted& event) {
  if (event.cause == kContinued) return continue_attempt(core, event);
  State& s = core.s;
  if (event.attempt <= s.attempt.number) {
    return core.explain(fmt::format("Attempt {} is not new.", event.attempt));
  }
  const bool first = s.attempt.number == 0;
  const int64_t reached = s.newest_step;
  int64_t& undone = s.standing.undone_step;
  if (event.cause == "rollback") undone = std::max(undone, reached);
  const bool of_undone =
      event.cause != "rollback" && event.base_step > reached && event.base_step <= undone;
  if (!first) count_lost_steps(core, event.base_step, event.cause == "rollback");
  note_new_attempt(core);
  s.watch_from = std::min(s.watch_from, event.base_step);
  const bool had_ended = std::exchange(s.ended, false);
  rewind_spikes(s.spikes, s.newest_step - event.base_step);
  s.watch.sentinels = {};
  s.watch.called_start = -1;
  if (s.watch.called_step > event.base_step) s.watch.called_step = -1;
  forget_batches(s);
  s.attempt = {event.attempt, event.base_step, event.plan_version, event.cause, event.host};
  s.newest_step = event.base_step;
  s.plan_version = event.plan_version;
  if (first) {
    s.plans.front().version = event.plan_version;
    s.next_plan_version = std::max(s.next_plan_version, event.plan_version + 1);
  }
  note_plan(core, event.plan_version);
  std::erase_if(s.plan_changes,
                [&](const PlanChange& change) { return change.step > event.base_step; });
  forget_after(core, event.base_step);
  if (s.investigation && event.cause == "rollback") {
    const WindowState* window = find_window(s, s.investigation->window);
    if (window == nullptr || window->end_step() > event.base_step)
      end_case(core, "skipped", gone_back(event.base_step));
  }
  s.next_start = first_start(core, event.base_step);
  forget_windows_after(s, event.base_step, window_lengths(s, core.policy).steps);
  if (event.cause != "restart") begin_dense(s);
  s.standing.due_step = 0;
  if (event.cause != "rollback") s.standing.promised.reset();
  s.hold_due = core.held();
  if (of_undone && may_go_back(core)) {
    go_back_unexplained(
        core, reached + 1,
        fmt::format("Attempt {} begins at step {}, where attempt {} has not been: the run was "
                    "rolled back from there, and its base is of the steps that were undone",
                    event.attempt, event.base_step, event.attempt - 1));
  }
  if (had_ended) take_up(core, event.base_step);
  if (event.cause != "rollback") return;
  if (s.recovery && s.recovery->by_rollback && s.recovery->attempt == 0)
    s.recovery->attempt = event.attempt;
  if (s.directive && s.directive->kind == "rollback" && s.directive->to_step == event.base_step) {
    s.standing.promised = std::move(s.directive);
    s.directive.reset();
  }
}

void note_plan(Core& core, int64_t version) {
  State& s = core.s;
  if (!s.inherited || version <= s.unknown_plan_said) return;
  for (const KnownPlan& plan : s.plans) {
    if (plan.version == version) return;
  }
  s.unknown_plan_said = version;
  core.record("instrument",
              fmt::format("The run is in plan {}, which was set by a controller whose ledger is "
                          "lost: it is taken for the run's own plan. An override of kind set_plan "
                          "puts the run into a plan that is known.",
                          version),
              {{"plan_version", version}});
}

void forget_after(Core& core, int64_t base) {
  State& s = core.s;
  std::erase_if(s.checkpoints, [&](const KnownCheckpoint& known) { return known.step > base; });
  std::erase_if(s.quiet_ends, [&](const QuietEnd& quiet) { return quiet.end.step > base; });
  std::erase_if(s.generic_spike_steps, [&](int64_t step) { return step > base; });
  if (s.spikes.shared_step > base) s.spikes.shared_step = -1;
  if (s.suspicion && s.suspicion->finding.step > base) s.suspicion.reset();
  forget_stability_after(s, base);
  std::vector<int64_t> moot;
  for (const WindowState& window : s.windows) {
    if (window.end_step() > base && !of_case(s, window.id)) moot.push_back(window.id);
  }
  for (int64_t id : moot) {
    const bool alarm = find_window(s, id)->deferred;
    close_window(core, id, alarm ? WindowStatus("alarm") : "skipped", alarm ? "" : gone_back(base));
  }
  if (s.last_verified && s.last_verified->step > base) {
    // Everything before a verified checkpoint was verified as well.
    const KnownCheckpoint* known = checkpoint_at(s, base);
    s.last_verified = known != nullptr ? std::optional<KnownCheckpoint>(*known) : std::nullopt;
  }
  std::erase_if(s.older_verified, [&](const KnownCheckpoint& known) {
    return known.step > base || (s.last_verified && known.step >= s.last_verified->step);
  });
  if (!s.last_verified && !s.older_verified.empty()) {
    s.last_verified = s.older_verified.back();
    s.older_verified.pop_back();
  }
  if (s.watch.dirty_since >= base) s.watch.dirty_since = -1;
  if (s.watch.long_start > base) s.watch.long_start = -1;
  s.watch.next_long = std::min(s.watch.next_long, base);
  forget_evidence_after(core, base);
  forget_probes_of_steps(s, base + 1, std::numeric_limits<int64_t>::max());
  s.watch.burst_left = 0;
}

}  // namespace gnomon::decide
