#include "controller/decide/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "protocol/records/checkpoint.h"

namespace gnomon::decide {
namespace {

ReplayPurpose purpose_of(ReplayRole role) {
  if (role == "shadow") return "shadow";
  if (role == "probe") return "probe";
  if (role == "scores" || role == "rescue") return "attribution";
  if (is_of_instrument(role) || role == "confirm" || role == "audit") return "instrument";
  return "triage";
}

CloseWindow numbers_of(const Core& core, const WindowState& window, WindowStatus outcome) {
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

}  // namespace

WindowState* find_window(State& state, int64_t id) {
  for (WindowState& window : state.windows) {
    if (window.id == id) return &window;
  }
  return nullptr;
}

std::string window_name(const WindowState& window) {
  return fmt::format("Window {} (steps {}–{})", window.id, window.start.step, window.end_step());
}

bool of_case(const State& s, int64_t window) {
  return s.investigation &&
         (s.investigation->window == window || s.investigation->far_window == window ||
          s.investigation->fork_window == window);
}

bool one_plan(const State& state, int64_t start, int64_t end) {
  return std::none_of(
      state.plan_changes.begin(), state.plan_changes.end(),
      [&](const PlanChange& change) { return change.step > start + 1 && change.step <= end; });
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

int64_t plan_after(const State& state, const KnownCheckpoint& start) {
  return start.step == state.attempt.base_step ? state.attempt.plan_version : start.plan_version;
}

bool in_memory(const KnownCheckpoint& checkpoint) {
  return checkpoint.uri.starts_with(kMemoryScheme);
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

// The trainer does its replays one after the other.
static double seconds_on_trainer(const Core& core, const WindowState& window) {
  constexpr double kSlow = 2;
  int64_t steps = window.steps;
  for (const PendingReplay& other : core.s.replays) {
    const WindowState* its = other.deadline > 0 ? find_window(core.s, other.window) : nullptr;
    if (its != nullptr) steps += its->steps;
  }
  const Account& account = core.s.money.account;
  const double of_fp8 = account.fp8.typical() * core.policy.economics.speedup;
  return kSlow * static_cast<double>(steps) * std::max(of_fp8, account.bf16.typical());
}

int64_t order(Core& core, const WindowState& window, ReplayRole role, int64_t number,
              OrderReplay wanted) {
  State& s = core.s;
  if (in_memory(window.start)) wanted.on_trainer = true;
  wanted.replay = s.next_replay++;
  wanted.window = window.id;
  wanted.purpose = purpose_of(role);
  const double deadline = wanted.on_trainer ? core.now + core.policy.directives.timeout_seconds +
                                                  seconds_on_trainer(core, window)
                                            : 0;
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

void show_window(Core& core, int64_t id) {
  const WindowState* window = find_window(core.s, id);
  if (window == nullptr || !window->measured) return;
  core.effects.emplace_back(ShowWindow{numbers_of(core, *window, "open")});
}

void close_window(Core& core, int64_t id, WindowStatus outcome, const std::string& why) {
  const WindowState* window = find_window(core.s, id);
  if (window == nullptr) return;
  CloseWindow closed = numbers_of(core, *window, outcome);
  if (outcome == "skipped" || outcome == "failed") closed.why = why.empty() ? window->why : why;
  core.effects.emplace_back(std::move(closed));
  std::erase_if(core.s.replays, [&](const PendingReplay& replay) { return replay.window == id; });
  std::erase_if(core.s.windows, [&](const WindowState& other) { return other.id == id; });
}

void finish_window(Core& core, int64_t id) {
  const WindowState* window = find_window(core.s, id);
  if (window == nullptr || window->shadow_pending || window->probe_pending ||
      window->instrument_pending || window->confirm_pending || window->audit_pending ||
      window->deferred || window->unsettled || of_case(core.s, id))
    return;
  close_window(core, id, WindowStatus(window->outcome));
}

void close_orphans(Core& core) {
  std::vector<int64_t> orphans;
  for (const WindowState& window : core.s.windows) {
    if (window.kind == "incident" && !of_case(core.s, window.id)) orphans.push_back(window.id);
  }
  for (int64_t id : orphans) close_window(core, id, "skipped", "its case has ended");
}

}  // namespace gnomon::decide
