#include "controller/decide/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/philox.h"
#include "base/rounding.h"
#include "controller/decide/bases.h"
#include "controller/decide/containment.h"
#include "controller/decide/instrument.h"
#include "controller/decide/plans.h"
#include "controller/decide/recovery.h"
#include "controller/decide/returning.h"
#include "controller/decide/spending.h"
#include "controller/decide/stability.h"
#include "controller/decide/standing.h"
#include "controller/decide/window_lengths.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kCallWindows = 10;  // lengths of a window between two calls that are answered
constexpr uint64_t kPhaseStream = 0x5048415345;  // "PHASE": of random places of windows

WindowLengths lengths(const Core& core) {
  WindowLengths made = window_lengths(core.s, core.policy);
  // A case that is open asks its own questions, and needs the verifiers for them.
  if (core.s.watch.burst_left > 0 && !core.s.investigation) made.every = made.steps;
  return made;
}

void record_rounding(Core& core, const WindowLengths& used) {
  const Policy::Window& asked = core.policy.window;
  const bool as_asked = asked.every == 0 || used.every == asked.every;
  if (core.s.rounding_said || (used.steps == asked.steps && as_asked)) return;
  core.s.rounding_said = true;
  const auto words = [](int64_t steps, int64_t every) {
    return every == 0 ? fmt::format("{} steps", steps)
                      : fmt::format("{} steps every {} steps", steps, every);
  };
  core.record(
      "accept",
      fmt::format("Windows of {} were asked for; the run has a checkpoint every {} steps, so "
                  "windows are {}.",
                  words(asked.steps, asked.every), used.unit, words(used.steps, used.every)),
      {{"steps", used.steps}, {"every", used.every}, {"checkpoint_every", used.unit}});
}

// Windows that wait for verifiers; those that wait for a case or a verdict cost none of them.
int64_t count_waiting(const State& state) {
  return std::count_if(state.windows.begin(), state.windows.end(), [](const WindowState& window) {
    return window.kind != "long" &&
           (window.shadow_pending || window.probe_pending || window.instrument_pending ||
            window.confirm_pending || window.audit_pending);
  });
}

// Windows that are measured and kept for a case take no verifier's time, but they are bounded, too.
// Those of a recovery are so few as it needs.
bool too_many_open(const Core& core) {
  constexpr int64_t kMeasuredMax = 2;  // beyond those that may wait for verifiers
  const int64_t open = std::ranges::count_if(core.s.windows, [](const WindowState& window) {
    return !window.unsettled && (window.kind == "shadow" || window.kind == "probe");
  });
  const int64_t most = core.policy.window.open_max;
  return count_waiting(core.s) >= most || open >= most + kMeasuredMax;
}

// A window of a run that is in BF16 needs no shadow: it is its own reference.
void pass_bf16_window(Core& core, const KnownCheckpoint& start, const KnownCheckpoint& end,
                      int64_t plan) {
  State& s = core.s;
  mend_instrument_in_bf16(core);
  add_quiet_end(s, start.step, end);
  settle_verified(core);
  note_calm_in_bf16(core, start.step, end.step);
  const bool probe = probe_due(core);
  recover_in_bf16(core, s.attempt.number, plan, start.step, end.step);
  note_quiet(core, plan);
  if (probe && !too_many_open(core)) {
    order_probe(core, add_window(core, "probe", start, end.step, end.uri, plan));
  }
}

void skip_window(Core& core, int64_t id, const std::string& why) {
  core.explain(fmt::format("{} is skipped: {}.", window_name(*find_window(core.s, id)), why));
  close_window(core, id, "skipped", why);
  note_unverified(core);
}

// A window that was called for takes the place of the newest one that only waits for its turn.
void make_room(Core& core) {
  const auto& windows = core.s.windows;
  const auto routine = std::find_if(windows.rbegin(), windows.rend(), [](const WindowState& open) {
    return open.kind == "shadow" && open.shadow_pending && !open.called;
  });
  if (routine == windows.rend()) return;
  skip_window(core, routine->id,
              "a window over what a sentinel or a spike has shown takes its place");
}

void open_window(Core& core, const KnownCheckpoint& start, const KnownCheckpoint& end, int64_t plan,
                 bool called) {
  State& s = core.s;
  if (plan_of(s, plan).bf16) return pass_bf16_window(core, start, end, plan);
  if (called && too_many_open(core)) make_room(core);
  const bool full = too_many_open(core);
  WindowState& window = add_window(core, "shadow", start, end.step, end.uri, plan);
  if (full) {
    return skip_window(
        core, window.id,
        fmt::format("{} windows are open already, {} of them wait for verifiers (window.open_max "
                    "= {})",
                    s.windows.size() - 1, count_waiting(s), core.policy.window.open_max));
  }
  window.shadow_pending = true;
  window.called = called;
  s.watch.instrument.windows_since += 1;
  order(core, window, "bf16", "shadow", "", true, called ? kPriorityCalled : kPriorityShadow);
  // Where windows are long, the first one is all that is paid at once.
  const bool paid = core.policy.window.every > 0 ||
                    steps_until_paid(s, core.policy, window.steps, count_waiting(s)) == 0;
  if (paid && instrument_due(core)) order_instrument(core, window);
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
  const int64_t steps = round_up(long_fork_steps(core.policy), unit);
  if (steps <= 0 || s.checkpoints.empty()) return;
  const bool by_budget = core.policy.window.long_steps == 0;
  if (s.watch.long_start < 0) {
    const KnownCheckpoint& newest = s.checkpoints.back();
    const bool due =
        by_budget ? long_fork_is_paid(s, core.policy, steps) : newest.step >= s.watch.next_long;
    if (due) s.watch.long_start = newest.step;
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

// A place in step with no period: half of `every` to one and a half, drawn by the run's name and
// the window's number, so that decisions can be made again from the ledger.
int64_t random_distance(const State& s, const WindowLengths& used) {
  const uint64_t key = hash64(s.run.name.data(), s.run.name.size());
  const auto word = philox(key, kPhaseStream, static_cast<uint64_t>(s.next_window))[0];
  const auto distance =
      static_cast<int64_t>((0.5 + philox_uniform(word)) * static_cast<double>(used.every));
  return std::max(used.steps, round_up(distance, used.unit));
}

// Steps from the start of a window to that of the next. By the budget windows are close together
// at first, then move apart, and then have random places: what comes and goes cannot stay between
// them.
int64_t next_distance(Core& core, const WindowLengths& used, bool bf16) {
  if (core.policy.window.every > 0 || core.s.watch.burst_left > 0) return used.every;
  if (bf16) return bf16_distance(core.policy, used);
  int64_t& distance = core.s.money.spending.distance;
  distance = std::min(used.every, std::max(used.steps, 2 * distance));
  return distance < used.every ? distance : random_distance(core.s, used);
}

// True when a sentinel or a spike has called for a window that begins here.
bool is_called(const State& s, int64_t start) {
  return s.watch.called_start >= 0 && start >= s.watch.called_start;
}

// Steps by which a window is put off because the budget does not pay it yet; 0: it is opened.
int64_t put_off(const Core& core, const WindowLengths& used, int64_t start) {
  const State& s = core.s;
  const bool incident = is_called(s, start) || s.investigation || s.recovery ||
                        s.watch.burst_left > 0 || (s.containment && !s.containment->recovered);
  const int64_t newest = s.money.spending.last_start;
  if (core.policy.window.every > 0 || incident) return 0;
  const int64_t from = newest < 0 ? s.attempt.base_step : std::min(newest, start);
  const int64_t limit = from + kSparsest * used.every;
  if (start >= limit) return 0;
  const int64_t wait = steps_until_paid(s, core.policy, used.steps, count_waiting(s));
  return wait == 0 ? 0 : round_up(std::min(wait, limit - start), used.unit);
}

// The step up to which windows have looked or look.
int64_t end_of_newest_window(const State& s, const WindowLengths& used) {
  const int64_t last = s.money.spending.last_start;
  return last < 0 ? s.attempt.base_step : last + used.steps;
}

// The newest checkpoint of FP8 before a step, or the first one after `least`, up to which is looked
// anyway, if a window from there has an end or will have one. The next checkpoint if there is none.
int64_t start_before(const State& s, const WindowLengths& used, int64_t step, int64_t least) {
  std::optional<int64_t> found;
  for (const KnownCheckpoint& known : s.checkpoints) {
    const int64_t end = known.step + used.steps;
    const bool has_end = end > s.checkpoints.back().step || checkpoint_at(s, end) != nullptr;
    if (known.step < least || !has_end || plan_of(s, plan_after(s, known)).bf16) continue;
    if (!found || known.step < step) found = known.step;
  }
  return found.value_or(round_up(s.newest_step, used.unit));
}

// Where the policy was replaced by one that has other distances, what was planned under the old one
// is void.
void follow_policy(Core& core) {
  State& s = core.s;
  Spending& spending = s.money.spending;
  const int64_t asked = asked_lengths(core.policy, s.run.checkpoint_every).every;
  const int64_t before = std::exchange(spending.asked_every, asked);
  if (before == 0 || before == asked) return;
  const int64_t chosen = std::exchange(s.watch.every, 0);
  const WindowLengths used = lengths(core);
  const int64_t next = std::max(spending.last_start + used.every, s.newest_step);
  if (spending.last_start >= 0) s.next_start = std::min(s.next_start, first_start(core, next));
  core.record("cadence",
              fmt::format("The policy was replaced: a window every {} steps instead of {}.",
                          used.every, chosen > 0 ? chosen : before),
              {{"every", used.every}, {"before", chosen > 0 ? chosen : before}});
}

void open_due_windows(Core& core) {
  State& s = core.s;
  follow_policy(core);
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
    const bool bf16 = plan_of(s, plan).bf16;
    if (const int64_t steps = bf16 ? 0 : put_off(core, used, start->step)) {
      s.next_start += steps;
      continue;
    }
    s.money.spending.last_start = start->step;
    note_planned(s, end->step);
    const bool called = is_called(s, start->step);
    if (called) s.watch.called_start = -1;
    s.next_start += next_distance(core, used, bf16);
    if (called && end->step < s.watch.called_step) {
      // What was seen when it was called for may lie behind its end.
      s.next_start = s.watch.called_start = end->step;
    }
    open_window(core, KnownCheckpoint(*start), KnownCheckpoint(*end), plan, called);
  }
}

// Steps after one call in which no other is answered.
int64_t call_distance(const Core& core, const WindowLengths& used) {
  const int64_t cadences = is_overdrawn(core.s, core.policy) ? kSparsest : 1;
  return std::max(cadences * used.every, kCallWindows * used.steps);
}

// Another case looks already, or there is nothing to look at.
bool looked_into(const State& s) { return s.investigation || s.directive || s.recovery || s.ended; }

// A window was called for less than the distance of two windows ago.
bool called_lately(const Core& core, const WindowLengths& used) {
  const State& s = core.s;
  return s.watch.called_step >= 0 &&
         s.newest_step < s.watch.called_step + call_distance(core, used);
}

// A spike that BF16 shares says nothing of FP8: weights that FP8 has spoilt make BF16 spike, too. A
// window follows it, a window's length later, for the shock itself is set aside.
void follow_shared_spike(Core& core) {
  State& s = core.s;
  if (s.generic_spike_steps.empty() || core.policy.window.every > 0) return;
  const WindowLengths used = lengths(core);
  const int64_t from = s.generic_spike_steps.back() + used.steps;
  const KnownCheckpoint* start = first_after(s, from - 1);
  if (start == nullptr || start->step >= s.next_start || s.money.spending.last_start >= from ||
      looked_into(s) || called_lately(core, used))
    return;
  s.next_start = s.watch.called_start = start->step;
  s.watch.called_step = s.newest_step;
  core.explain(fmt::format(
      "BF16 spiked at step {}, too. A window from step {} will show whether FP8 costs loss there.",
      s.generic_spike_steps.back(), start->step));
}

bool is_of_casts(const SentinelCall& call) { return call.signal.starts_with("cast_"); }

std::string seen_by(const SentinelCall& call, int64_t newest_step) {
  if (call.signal == "cast_peak") {
    return fmt::format(
        "Casts to FP8 have changed since step {}: the largest value is {:.3g} times what the "
        "format holds ({:.2g} before).",
        call.since_step, call.value, call.forecast);
  }
  if (is_of_casts(call)) {
    return fmt::format(
        "Casts to FP8 have changed since step {}: {} values {}, {:.4g} times as many as before "
        "(geometric mean over the tensors).",
        call.since_step, call.up ? "more" : "fewer",
        call.signal == "cast_saturated" ? "are clipped" : "become zero",
        call.value / call.forecast);
  }
  return fmt::format(
      "The {} has been {} its forecast since step {}: at step {} it was {:.4g}, and {:.4g} was "
      "expected (cumulative sum {:.1f}, it calls at {:.0f}).",
      call.signal == "loss" ? "loss" : "gradient norm", call.up ? "above" : "below",
      call.since_step, newest_step, call.value, call.forecast, call.statistic, kSentinelCalls);
}

json::object call_evidence(const SentinelCall& call) {
  return {{"signal", call.signal},
          {"since_step", call.since_step},
          {"value", number(call.value)},
          {"forecast", number(call.forecast)},
          {"statistic", number(call.statistic)},
          {"threshold", kSentinelCalls}};
}

struct CalledWindow {
  int64_t start = 0;
  bool looks_anyway = false;  // it was to come next
};

// Has a window begin before this step, or up to where windows have looked, and others follow it up
// to the newest step. None: the run is in BF16.
std::optional<CalledWindow> call_window(Core& core, int64_t since_step) {
  State& s = core.s;
  if (plan_of(s, s.plan_version).bf16) return std::nullopt;
  const WindowLengths used = lengths(core);
  const int64_t least = std::max(s.watch_from, end_of_newest_window(s, used));
  const int64_t start = start_before(s, used, since_step, least);
  const bool looks_anyway = start >= s.next_start;
  if (!looks_anyway) s.next_start = start;
  s.watch.called_start = s.next_start;
  s.watch.called_step = s.newest_step;
  return CalledWindow{s.next_start, looks_anyway};
}

// The policy leaves FP8 on the gradient norm's word alone.
bool leaves_fp8(const Core& core, const SentinelCall& call) {
  return call.signal == "grad_norm" && core.policy.verification.on_gradient_norm == "bf16" &&
         core.enforcing() && core.muted().empty() && !core.held();
}

}  // namespace

void handle_checkpoint(Core& core, const CheckpointCompleted& event) {
  State& s = core.s;
  if (event.attempt != s.attempt.number || event.step < s.attempt.base_step) {
    return core.explain(
        fmt::format("A checkpoint of attempt {} at step {} does not belong to attempt {}.",
                    event.attempt, event.step, s.attempt.number));
  }
  if (checkpoint_at(s, event.step) != nullptr) {
    return core.explain(fmt::format("The checkpoint at step {} is known.", event.step));
  }
  record_rounding(core, asked_lengths(core.policy, s.run.checkpoint_every));
  const KnownCheckpoint checkpoint{event.attempt, event.step, event.uri, event.plan_version};
  const auto place =
      std::find_if(s.checkpoints.begin(), s.checkpoints.end(),
                   [&](const KnownCheckpoint& known) { return known.step > event.step; });
  s.checkpoints.insert(place, checkpoint);
  // A run's beginning cannot have been damaged by it.
  if (s.attempt.cause == "start" && event.step == s.attempt.base_step)
    mark_verified(core, checkpoint);
  follow_shared_spike(core);
  open_due_windows(core);
  open_long_fork(core);
}

void answer_sentinel(Core& core, const SentinelCall& call) {
  State& s = core.s;
  const WindowLengths used = lengths(core);
  const std::string seen = seen_by(call, s.newest_step);
  const bool looked = looked_into(s);
  const bool soon = called_lately(core, used);
  const bool in_bf16 = plan_of(s, s.plan_version).bf16;
  if (leaves_fp8(core, call) && !looked && !in_bf16) {
    return leave_fp8(core, seen.substr(0, seen.size() - 1), call_evidence(call), false);
  }
  const std::optional<CalledWindow> window =
      may_be_harm(call) && !looked && !soon ? call_window(core, call.since_step) : std::nullopt;
  if (!window) return core.explain(seen + " No window is ordered for it.");
  if (window->looks_anyway) return core.explain(seen + " The next window looks at it anyway.");
  const int64_t windows =
      std::max<int64_t>(1, (s.newest_step - window->start + used.steps - 1) / used.steps);
  json::object evidence = call_evidence(call);
  evidence["start_step"] = window->start;
  core.record("sentinel",
              fmt::format("{} {} {} over steps {} to {} will show whether {}.", seen,
                          is_of_casts(call) ? "A" : "That blames nobody: a",
                          windows > 1 ? "row of windows" : "window", window->start + 1,
                          window->start + windows * used.steps,
                          is_of_casts(call) ? "it costs loss" : "FP8 is the cause"),
              std::move(evidence));
  open_due_windows(core);
}

void note_changed_state(Core& core, int64_t step) {
  State& s = core.s;
  const WindowLengths used = lengths(core);
  int64_t& recorded = s.watch.health.state_changed_step;
  // A bit that is stuck shows in every step.
  if (recorded >= 0 && recorded <= step && step < recorded + call_distance(core, used)) return;
  recorded = step;
  const bool looked = looked_into(s);
  const bool has_start = !s.checkpoints.empty() && s.checkpoints.front().step < step;
  const std::optional<CalledWindow> window =
      looked || !has_start ? std::nullopt : call_window(core, step - 1);
  const std::string next =
      window ? fmt::format(
                   "A window from step {} on shows what it does to the loss, and is replayed "
                   "to the bit where that can be done",
                   window->start + 1)
             : fmt::format("No window is ordered for it: {}",
                           looked ? "something else is looked into"
                                  : "the run is in BF16, or no "
                                    "checkpoint before it is known");
  core.record("health",
              fmt::format("Step {} found other master weights or moments than step {} had written: "
                          "memory of the trainer's host does not keep them, or a program writes "
                          "where it must not. Check that host's memory. {}.",
                          step, step - 1, next),
              {{"step", step}})
      .verdict = "memory_changed";
  open_due_windows(core);
}

void bring_forward(Core& core) {
  State& s = core.s;
  if (core.policy.window.every > 0) return;
  const int64_t newest = s.checkpoints.empty() ? s.newest_step : s.checkpoints.back().step;
  const int64_t last = s.money.spending.last_start;
  const int64_t free = last < 0 ? newest : last + lengths(core).steps;
  s.next_start = std::min(s.next_start, first_start(core, std::max(newest, free)));
}

int64_t first_start(const Core& core, int64_t step) {
  return checkpoint_at(core.s, step) != nullptr ? step : round_up(step, lengths(core).unit);
}

}  // namespace gnomon::decide
