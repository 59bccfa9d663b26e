#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rounding.h"
#include "controller/decide/core.h"
#include "controller/decide/gap_rivals.h"
#include "controller/decide/plans.h"
#include "controller/decide/window_lengths.h"
#include "protocol/records/checkpoint.h"

namespace gnomon::decide {
namespace {

WindowLengths lengths(const Core& core) {
  WindowLengths made =
      window_lengths(core.policy.window, core.s.run.checkpoint_every, core.s.watch.every);
  // A case that is open asks its own questions, and needs the verifiers for them.
  if (core.s.watch.burst_left > 0 && !core.s.investigation) made.every = made.steps;
  return made;
}

void say_rounding(Core& core, const WindowLengths& used) {
  const Policy::Window& asked = core.policy.window;
  if (core.s.rounding_said || (used.steps == asked.steps && used.every == asked.every)) return;
  core.s.rounding_said = true;
  core.record(
      "accept",
      fmt::format(
          "Windows of {} steps every {} steps were asked for; the run has a checkpoint every {} "
          "steps, so windows are {} steps every {} steps.",
          asked.steps, asked.every, used.unit, used.steps, used.every),
      {{"steps", used.steps}, {"every", used.every}, {"checkpoint_every", used.unit}});
}

const KnownCheckpoint* checkpoint_at(const State& state, int64_t step) {
  for (const KnownCheckpoint& known : state.checkpoints) {
    if (known.step == step) return &known;
  }
  return nullptr;
}

const KnownCheckpoint* first_after(const State& state, int64_t step) {
  for (const KnownCheckpoint& known : state.checkpoints) {
    if (known.step > step) return &known;
  }
  return nullptr;
}

// Windows that wait for verifiers; those that wait for a case or a verdict cost none of them.
int64_t count_waiting(const State& state) {
  return std::count_if(state.windows.begin(), state.windows.end(), [](const WindowState& window) {
    return window.kind != "long" && (window.shadow_pending || window.probe_pending ||
                                     window.instrument_pending || window.confirm_pending);
  });
}

// Windows that are measured and kept for a case or a recovery take no verifier's time, but they are
// bounded, too.
bool too_many_open(const Core& core) {
  constexpr int64_t kMeasuredMax = 2;  // beyond those that may wait for verifiers
  const int64_t open = std::ranges::count_if(core.s.windows, [](const WindowState& window) {
    return window.kind == "shadow" || window.kind == "probe";
  });
  const int64_t most = core.policy.window.open_max;
  return count_waiting(core.s) >= most || open >= most + kMeasuredMax;
}

void mark_verified(Core& core, const KnownCheckpoint& checkpoint) {
  State& s = core.s;
  if (s.last_verified && s.last_verified->step >= checkpoint.step) return;
  if (s.last_verified) s.older_verified.push_back(*s.last_verified);
  if (s.older_verified.size() > kOlderVerifiedMax) s.older_verified.erase(s.older_verified.begin());
  s.last_verified = checkpoint;
  if (checkpoint.step > s.watch.dirty_since) s.watch.dirty_since = -1;
  core.effects.emplace_back(MarkVerified{checkpoint.attempt, checkpoint.step, checkpoint.uri});
}

// A window of a run that is in BF16 needs no shadow: it is its own reference.
void pass_bf16_window(Core& core, const KnownCheckpoint& start, const KnownCheckpoint& end,
                      int64_t plan) {
  State& s = core.s;
  mend_instrument_in_bf16(core);
  add_quiet_end(s, start.step, end);
  settle_verified(core);
  const bool probe = probe_due(core);
  recover_in_bf16(core, s.attempt.number, plan, start.step, end.step);
  note_quiet(core, plan);
  if (probe && !too_many_open(core)) {
    order_probe(core, add_window(core, "probe", start, end.step, end.uri, plan));
  }
}

void open_window(Core& core, const KnownCheckpoint& start, const KnownCheckpoint& end,
                 int64_t plan) {
  State& s = core.s;
  if (plan_of(s, plan).bf16) return pass_bf16_window(core, start, end, plan);
  const bool full = too_many_open(core);
  WindowState& window = add_window(core, "shadow", start, end.step, end.uri, plan);
  if (full) {
    core.say(fmt::format("Window {} (steps {}–{}) is skipped: {} windows are open already.",
                         window.id, window.start.step, window.end_step(), s.windows.size() - 1));
    close_window(core, window.id, "skipped");
    note_unverified(core);
    return;
  }
  window.shadow_pending = true;
  s.watch.instrument.windows_since += 1;
  order(core, window, "bf16", "shadow", "", true, kPriorityShadow);
  if (instrument_due(core)) order_instrument(core, window);
  if (probe_due(core)) order_probe(core, window);
}

// Long forks see slow bias. One is waited for at a time: its start is kept until its end is there,
// and while verifiers are too slow for it no other begins.
void open_long_fork(Core& core) {
  State& s = core.s;
  const bool waits = std::any_of(s.windows.begin(), s.windows.end(), [](const WindowState& window) {
    return window.kind == "long" && window.shadow_pending;
  });
  if (waits) return;
  const int64_t unit = std::max<int64_t>(1, s.run.checkpoint_every);
  const int64_t steps = round_up(core.policy.window.long_steps, unit);
  if (steps <= 0 || s.checkpoints.empty()) return;
  if (s.watch.long_start < 0) {
    const KnownCheckpoint& newest = s.checkpoints.back();
    if (newest.step >= s.watch.next_long) s.watch.long_start = newest.step;
    return;
  }
  const KnownCheckpoint* start = checkpoint_at(s, s.watch.long_start);
  const KnownCheckpoint* end = checkpoint_at(s, s.watch.long_start + steps);
  const bool broken = start == nullptr || !one_plan(s, start->step, s.newest_step) ||
                      plan_of(s, plan_after(s, *start)).bf16 || s.investigation || s.directive;
  if (broken || (end == nullptr && first_after(s, s.watch.long_start + steps) != nullptr)) {
    s.watch.long_start = -1;  // another one from the next checkpoint on
    return;
  }
  if (end == nullptr) return;
  s.watch.next_long =
      s.watch.long_start + std::max(steps, round_up(core.policy.window.long_every, unit));
  s.watch.long_start = -1;
  WindowState& window = add_window(core, "long", KnownCheckpoint(*start), end->step,
                                   std::string(end->uri), plan_after(s, *start));
  window.shadow_pending = true;
  order(core, window, "bf16", "shadow", "", true, kPriorityLong);
}

void open_due_windows(Core& core) {
  State& s = core.s;
  const WindowLengths used = lengths(core);
  for (;;) {
    const KnownCheckpoint* start = checkpoint_at(s, s.next_start);
    if (start == nullptr) {
      const KnownCheckpoint* next = first_after(s, s.next_start);
      if (next == nullptr) return;
      s.next_start = next->step;
      continue;
    }
    const KnownCheckpoint* end = checkpoint_at(s, s.next_start + used.steps);
    const bool missed = end == nullptr && first_after(s, s.next_start + used.steps) != nullptr;
    if (end == nullptr && !missed) return;
    const int64_t plan = plan_after(s, *start);
    if (missed || plan != end->plan_version || !one_plan(s, start->step, end->step)) {
      s.next_start = first_after(s, start->step)->step;
      continue;
    }
    s.next_start += used.every;
    open_window(core, KnownCheckpoint(*start), KnownCheckpoint(*end), plan);
  }
}

}  // namespace

void forget_after(Core& core, int64_t base) {
  State& s = core.s;
  std::erase_if(s.checkpoints, [&](const KnownCheckpoint& known) { return known.step > base; });
  std::erase_if(s.quiet_ends, [&](const QuietEnd& quiet) { return quiet.end.step > base; });
  std::erase_if(s.generic_spike_steps, [&](int64_t step) { return step > base; });
  std::erase_if(s.plan_changes, [&](const PlanChange& change) { return change.step > base; });
  if (s.suspicion && s.suspicion->finding.step > base) s.suspicion.reset();
  forget_stability_after(s, base);
  std::vector<int64_t> moot;
  for (const WindowState& window : s.windows) {
    if (window.end_step() > base && !of_case(s, window.id)) moot.push_back(window.id);
  }
  for (int64_t id : moot)
    close_window(core, id, find_window(s, id)->deferred ? WindowStatus("alarm") : "skipped");
  if (s.last_verified && s.last_verified->step > base) {
    // Everything before a verified checkpoint was verified as well.
    const KnownCheckpoint* known = checkpoint_at(s, base);
    s.last_verified = known != nullptr ? std::optional<KnownCheckpoint>(*known) : std::nullopt;
  }
  std::erase_if(s.older_verified, [&](const KnownCheckpoint& known) {
    return known.step > base || (s.last_verified && known.step >= s.last_verified->step);
  });
  if (s.watch.dirty_since >= base) s.watch.dirty_since = -1;
  if (s.watch.long_start > base) s.watch.long_start = -1;
  s.watch.next_long = std::min(s.watch.next_long, base);
  forget_seen_after(core, base);
  forget_probes_of_steps(s, base + 1, std::numeric_limits<int64_t>::max());
  s.watch.burst_left = 0;
}

bool one_plan(const State& state, int64_t start, int64_t end) {
  return std::none_of(
      state.plan_changes.begin(), state.plan_changes.end(),
      [&](const PlanChange& change) { return change.step > start + 1 && change.step <= end; });
}

std::string window_name(const WindowState& window) {
  return fmt::format("Window {} (steps {}–{})", window.id, window.start.step, window.end_step());
}

int64_t plan_after(const State& state, const KnownCheckpoint& start) {
  return start.step == state.attempt.base_step ? state.attempt.plan_version : start.plan_version;
}

WindowState& add_window(Core& core, WindowKind kind, const KnownCheckpoint& start, int64_t end_step,
                        const std::string& end_uri, int64_t plan_version) {
  State& s = core.s;
  WindowState window;
  window.id = s.next_window++;
  window.kind = kind;
  window.start = start;
  window.steps = end_step - start.step;
  window.end_uri = end_uri;
  window.attempt = s.attempt.number;
  window.plan_version = plan_version;
  core.effects.emplace_back(OpenWindow{{window.id, kind, window.attempt, start.step, window.steps,
                                        start.uri, end_uri, plan_version}});
  s.windows.push_back(std::move(window));
  return s.windows.back();
}

WindowState* find_window(State& state, int64_t id) {
  for (WindowState& window : state.windows) {
    if (window.id == id) return &window;
  }
  return nullptr;
}

bool in_memory(const KnownCheckpoint& checkpoint) {
  return checkpoint.uri.starts_with(kMemoryScheme);
}

ReplayPurpose purpose_of(ReplayRole role) {
  if (role == "shadow") return "shadow";
  if (role == "probe") return "probe";
  if (role == "scores" || role == "rescue") return "attribution";
  if (is_of_instrument(role) || role == "confirm") return "instrument";
  return "triage";
}

int64_t order(Core& core, const WindowState& window, ReplayRole role, int64_t number,
              OrderReplay wanted) {
  State& s = core.s;
  if (in_memory(window.start)) wanted.on_trainer = true;
  wanted.replay = s.next_replay++;
  wanted.window = window.id;
  wanted.purpose = purpose_of(role);
  const double deadline = wanted.on_trainer ? core.now + core.policy.directives.timeout_seconds : 0;
  s.replays.push_back({wanted.replay, window.id, role, number, deadline, wanted.avoid});
  core.effects.emplace_back(std::move(wanted));
  return s.replays.back().id;
}

int64_t order(Core& core, const WindowState& window, Arm arm, ReplayRole role,
              const std::string& plan, bool endpoints, int priority) {
  OrderReplay wanted;
  wanted.arm = arm;
  wanted.plan = plan;
  wanted.evaluate_endpoints = endpoints;
  wanted.priority = priority;
  return order(core, window, role, 0, std::move(wanted));
}

void close_orphans(Core& core) {
  std::vector<int64_t> orphans;
  for (const WindowState& window : core.s.windows) {
    if (window.kind == "incident" && !of_case(core.s, window.id)) orphans.push_back(window.id);
  }
  for (int64_t id : orphans) close_window(core, id, "skipped");
}

void finish_window(Core& core, int64_t id) {
  const WindowState* window = find_window(core.s, id);
  if (window == nullptr || window->shadow_pending || window->probe_pending ||
      window->instrument_pending || window->confirm_pending || window->deferred ||
      window->unsettled || of_case(core.s, id))
    return;
  close_window(core, id, WindowStatus(window->outcome));
}

static CloseWindow numbers_of(const Core& core, const WindowState& window, WindowStatus outcome) {
  CloseWindow numbers;
  numbers.window = window.id;
  numbers.outcome = outcome;
  if (window.measured) {
    numbers.gap = window.measured->gap;
    numbers.offset_loss = window.measured->offset;
    numbers.d_percent = window.measured->d_percent;
    numbers.gap_error = window.measured->gap_error;
  }
  if (window.judged) {
    const GapVerdict& judged = *window.judged;
    numbers.rule = judged.rule;
    numbers.statistic = judged.statistic;
    numbers.threshold = judged.threshold;
    numbers.scale_percent = judged.scale_percent;
    numbers.null_percent = judged.null_percent;
  }
  numbers.tolerance_percent = core.policy.detector.tolerance_percent;
  return numbers;
}

void show_window(Core& core, int64_t id) {
  const WindowState* window = find_window(core.s, id);
  if (window == nullptr || !window->measured) return;
  core.effects.emplace_back(ShowWindow{numbers_of(core, *window, "open")});
}

void close_window(Core& core, int64_t id, WindowStatus outcome) {
  const WindowState* window = find_window(core.s, id);
  if (window == nullptr) return;
  core.effects.emplace_back(numbers_of(core, *window, outcome));
  std::erase_if(core.s.replays, [&](const PendingReplay& replay) { return replay.window == id; });
  std::erase_if(core.s.windows, [&](const WindowState& other) { return other.id == id; });
}

// Where the next window may begin, once an attempt is at `step`.
static int64_t first_start(const Core& core, int64_t step) {
  return checkpoint_at(core.s, step) != nullptr ? step : round_up(step, lengths(core).unit);
}

// Somebody said that the trainer was gone for good, and it was not: it is supervised again.
static void go_on(Core& core, const AttemptStarted& event) {
  State& s = core.s;
  if (!s.ended || event.attempt != s.attempt.number) {
    return core.say(fmt::format("Attempt {} has not ended.", event.attempt));
  }
  s.ended = false;
  s.plan_version = event.plan_version;
  note_plan(core, event.plan_version);
  s.next_start = first_start(core, event.base_step);
}

void start_attempt(Core& core, const AttemptStarted& event) {
  if (event.cause == kOnceMore) return go_on(core, event);
  State& s = core.s;
  if (event.attempt <= s.attempt.number) {
    return core.say(fmt::format("Attempt {} is not new.", event.attempt));
  }
  const bool first = s.attempt.number == 0;
  if (!first) count_lost_steps(core, event.base_step, event.cause == "rollback");
  note_new_attempt(core);
  s.watch_from = std::min(s.watch_from, event.base_step);
  s.ended = false;  // a run that had stopped or failed goes on
  rewind_spikes(s.spikes, s.newest_step - event.base_step);
  s.attempt = {event.attempt, event.base_step, event.plan_version, event.cause, event.host};
  s.newest_step = event.base_step;
  s.plan_version = event.plan_version;
  if (first) {
    s.plans.front().version = event.plan_version;
    s.next_plan_version = std::max(s.next_plan_version, event.plan_version + 1);
  }
  note_plan(core, event.plan_version);
  forget_after(core, event.base_step);
  if (s.investigation && event.cause == "rollback") {
    const WindowState* window = find_window(s, s.investigation->window);
    if (window == nullptr || window->end_step() > event.base_step) end_case(core, "skipped");
  }
  s.next_start = first_start(core, event.base_step);
  s.hold_due = core.held();
  if (event.cause != "rollback") return;
  if (s.recovery && s.recovery->by_rollback && s.recovery->attempt == 0)
    s.recovery->attempt = event.attempt;
  if (s.directive && s.directive->kind == "rollback" && s.directive->to_step == event.base_step) {
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

void take_checkpoint(Core& core, const CheckpointCompleted& event) {
  State& s = core.s;
  if (event.attempt != s.attempt.number || event.step < s.attempt.base_step) {
    return core.say(
        fmt::format("A checkpoint of attempt {} at step {} does not belong to attempt {}.",
                    event.attempt, event.step, s.attempt.number));
  }
  if (checkpoint_at(s, event.step) != nullptr) {
    return core.say(fmt::format("The checkpoint at step {} is known.", event.step));
  }
  say_rounding(core, lengths(core));
  const KnownCheckpoint checkpoint{event.attempt, event.step, event.uri, event.plan_version};
  const auto place =
      std::find_if(s.checkpoints.begin(), s.checkpoints.end(),
                   [&](const KnownCheckpoint& known) { return known.step > event.step; });
  s.checkpoints.insert(place, checkpoint);
  // A run's beginning cannot have been damaged by it.
  if (s.attempt.cause == "start" && event.step == s.attempt.base_step)
    mark_verified(core, checkpoint);
  open_due_windows(core);
  open_long_fork(core);
}

void add_quiet_end(State& s, int64_t start_step, KnownCheckpoint end) {
  if (s.quiet_ends.size() >= kQuietEndsMax) s.quiet_ends.erase(s.quiet_ends.begin());
  s.quiet_ends.push_back({start_step, std::move(end)});
}

// Whether the window's end may be gone back to.
static bool is_clean(const Core& core, const WindowState& window) {
  const GapSettings settings = gap_settings(core.policy);
  double limit = tolerated_percent(core);
  if (window.kind == "long")
    limit *=
        long_gap_settings(core.policy, window.steps).ceiling_percent / settings.ceiling_percent;
  if (!(*window.measured->d_percent <= limit)) return false;
  return window.kind == "long" || is_rival(settings.kind) ||
         gap_total(core.s.watch.gap, settings) <= risen_evidence(core.policy);
}

void add_quiet_end(Core& core, const WindowState& window) {
  State& s = core.s;
  if (!is_clean(core, window)) {
    if (s.watch.dirty_since < 0) s.watch.dirty_since = window.start.step;
    return core.say(fmt::format("{} is no base to go back to.", window_name(window)));
  }
  add_quiet_end(s, window.start.step,
                {window.attempt, window.end_step(), window.end_uri, window.plan_version});
}

void settle_verified(Core& core) {
  State& s = core.s;
  int64_t doubtful = INT64_MAX;  // the first step from which the run is in doubt
  for (const WindowState& window : s.windows) {
    const bool waits = (window.shadow_pending || window.confirm_pending) && window.kind != "long";
    if (waits || window.deferred || window.unsettled || of_case(s, window.id))
      doubtful = std::min(doubtful, window.start.step);
  }
  if (s.suspicion) doubtful = std::min(doubtful, s.suspicion->start.step);
  std::sort(s.quiet_ends.begin(), s.quiet_ends.end(),
            [](const QuietEnd& a, const QuietEnd& b) { return a.end.step < b.end.step; });
  size_t settled = 0;
  while (settled < s.quiet_ends.size() && s.quiet_ends[settled].end.step <= doubtful) {
    mark_verified(core, s.quiet_ends[settled].end);
    settled += 1;
  }
  s.quiet_ends.erase(s.quiet_ends.begin(), s.quiet_ends.begin() + static_cast<int64_t>(settled));
}

void protect(Core& core) {
  State& s = core.s;
  // A rollback's target starts the first window of the attempt that the rollback begins.
  const auto may_be_a_base = [&](const KnownCheckpoint& known) {
    if (s.last_verified && known.uri == s.last_verified->uri) return true;
    for (const KnownCheckpoint& older : s.older_verified) {
      if (known.uri == older.uri) return true;
    }
    if (s.recovery && s.recovery->attempt == 0 && known.step == s.recovery->to_step) return true;
    if (known.step == s.watch.long_start) return true;
    const bool ends_count = core.policy.ladder.from == "evidence";
    if (ends_count && evidence_may_rise_after(s, known.step)) return true;
    return std::any_of(s.windows.begin(), s.windows.end(), [&](const WindowState& window) {
      return window.start.uri == known.uri || (ends_count && window.end_uri == known.uri);
    });
  };
  const auto needed_later = [&](size_t i) {
    return s.checkpoints[i].step >= s.next_start ||
           i + kCheckpointsNewest >= s.checkpoints.size() || may_be_a_base(s.checkpoints[i]);
  };
  std::vector<KnownCheckpoint> kept;
  for (size_t i = 0; i < s.checkpoints.size(); ++i) {
    if (needed_later(i)) kept.push_back(s.checkpoints[i]);
  }
  if (kept.size() > kCheckpointsMax) {
    kept.erase(kept.begin(), kept.end() - static_cast<int64_t>(kCheckpointsMax));
  }
  s.checkpoints = std::move(kept);
  std::vector<std::string> uris;
  const auto add = [&](const std::string& uri) {
    if (!uri.empty()) uris.push_back(uri);
  };
  for (const KnownCheckpoint& known : s.checkpoints) add(known.uri);
  if (s.last_verified) add(s.last_verified->uri);
  for (const KnownCheckpoint& older : s.older_verified) add(older.uri);
  for (const QuietEnd& quiet : s.quiet_ends) add(quiet.end.uri);
  for (const WindowState& window : s.windows) {
    add(window.start.uri);
    add(window.end_uri);
  }
  if (s.suspicion) add(s.suspicion->start.uri);
  if (s.directive) add(s.directive->checkpoint_uri);
  std::sort(uris.begin(), uris.end());
  uris.erase(std::unique(uris.begin(), uris.end()), uris.end());
  if (uris == s.protected_uris) return;
  s.protected_uris = uris;
  core.effects.emplace_back(ProtectCheckpoints{std::move(uris)});
}

}  // namespace gnomon::decide
