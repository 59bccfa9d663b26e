#include "controller/decide/spending.h"

#include <algorithm>
#include <cmath>

#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr double kOverheadMax = 20;  // a slow disk is not the budget's fault
constexpr double kOverheadWeight = 0.2;
// What the first steps will earn may be spent at once, while windows are close together,
constexpr int64_t kAheadSteps = 10'000;
constexpr int64_t kAheadShare = 4;     // of a run that has few steps, this part of them,
constexpr double kAheadWindows = 6;    // and at least so many windows, if these are not too long:
constexpr double kAheadMost = 50'000;  // what so many steps earn at most.
// Half of what later steps earn pays it back, or more where the run ends before.
constexpr double kPaidBackOver = 2;
constexpr double kOwedSteps = 20'000;  // an incident that cost more than these earn is written off

constexpr int64_t kLongForkWindows = 10;  // lengths of a window

double share(const Policy& policy) { return policy.verification.budget_percent / 100; }

double speedup_of(const State& state, const Policy& policy) {
  return measured_speedup(state.money.account, policy.economics.speedup).value;
}

// A window's shadow with its part of the checks that come with windows.
double window_cost(const Policy& policy, int64_t steps, double speedup, double overhead) {
  const double checks = 1.0 / static_cast<double>(kCheckEvery) +
                        1.0 / (speedup * static_cast<double>(kAuditEvery)) +
                        (policy.instrument.every > 0 ? 1.0 / policy.instrument.every : 0);
  return shadow_cost(policy, steps, speedup, overhead) * (1 + checks);
}

// Steps that may be spent before they are trained, and are paid back evenly.
struct Advance {
  double all = 0;
  double paid_back_over = 0;  // steps
  double steps_left = 0;      // of these
  double left() const { return all * steps_left / paid_back_over; }
  // What a step earns meanwhile, of what it earns later.
  double earning() const { return 1 - all / paid_back_over; }
};

Advance advance_of(const State& state, double share, double cost) {
  const Spending& spending = state.money.spending;
  const int64_t total = state.run.total_steps;
  const int64_t few = total > 0 ? std::min(kAheadSteps, total / kAheadShare) : kAheadSteps;
  Advance advance;
  const double windows = std::min(kAheadWindows * cost / share, kAheadMost);
  advance.all = std::max(static_cast<double>(few), windows);
  const double over = kPaidBackOver * advance.all;
  const double most = total > 0 ? static_cast<double>(total - spending.dense_from) : over;
  advance.paid_back_over = std::max(advance.all, std::min(over, most));
  const auto since = static_cast<double>(spending.trained - spending.dense_from);
  advance.steps_left = std::max(0.0, advance.paid_back_over - since);
  return advance;
}

// How much longer the replay took than its steps.
double overhead_of(const ReplayFinished& result) {
  if (!(result.seconds > 0 && result.step_seconds > 0)) return 0;
  return std::clamp(result.seconds / result.step_seconds, 1.0, kOverheadMax);
}

}  // namespace

double shadow_cost(const Policy& policy, int64_t steps, double speedup, double overhead) {
  const double compute = static_cast<double>(steps) * speedup;
  return overhead > 0 ? compute * overhead : compute + policy.economics.switch_steps;
}

int64_t long_fork_steps(const Policy& policy) {
  const bool by_budget = policy.window.every == 0 && policy.verification.long_share > 0;
  if (policy.window.long_steps > 0 || !by_budget) return policy.window.long_steps;
  return kLongForkWindows * policy.window.steps;
}

int64_t every_by_budget(const Policy& policy, int64_t steps, double speedup, double overhead) {
  const double forks = long_fork_steps(policy) > 0 && policy.window.long_steps == 0
                           ? policy.verification.long_share
                           : 0;
  const double every =
      window_cost(policy, steps, speedup, overhead) / (share(policy) * (1 - forks));
  return std::max(steps, static_cast<int64_t>(std::ceil(std::min(every, Policy::kStepsMax))));
}

void count_trained(State& state) { state.money.spending.trained += 1; }

void count_spent(State& state, const Policy& policy, const PendingReplay& replay,
                 const ReplayFinished& result) {
  Spending& spending = state.money.spending;
  const double overhead = overhead_of(result);
  const bool in_bf16 = result.arm == "bf16" || result.arm == "bf16-perturbed";
  const double speedup = in_bf16 ? speedup_of(state, policy) : 1;
  const auto steps = static_cast<int64_t>(result.steps.size());
  const double cost = shadow_cost(policy, steps, speedup, overhead);
  spending.spent += cost;
  const WindowState* window = find_window(state, replay.window);
  const bool of_fork = window != nullptr && window->kind == "long";
  if (of_fork) spending.spent_on_forks += cost;
  if (replay.role == "shadow" && !of_fork && overhead > 0) {
    spending.overhead +=
        (spending.overhead > 0 ? kOverheadWeight : 1) * (overhead - spending.overhead);
  }
  const double owed = spending.spent - share(policy) * static_cast<double>(spending.trained);
  spending.spent -= std::max(0.0, owed - share(policy) * kOwedSteps);
}

void begin_dense(State& state) {
  state.money.spending.dense_from = state.money.spending.trained;
  state.money.spending.distance = 0;
}

bool long_fork_is_paid(const State& state, const Policy& policy, int64_t steps) {
  const Spending& spending = state.money.spending;
  const double earned =
      policy.verification.long_share * share(policy) * static_cast<double>(spending.trained);
  const double cost =
      shadow_cost(policy, steps, speedup_of(state, policy), std::min(spending.overhead, 1.0));
  return spending.spent_on_forks + cost <= earned;
}

void forget_windows_after(State& state, int64_t base, int64_t steps) {
  int64_t& last = state.money.spending.last_start;
  if (last >= 0) last = std::min(last, std::max<int64_t>(0, base - steps));
}

bool is_overdrawn(const State& state, const Policy& policy) {
  const Spending& spending = state.money.spending;
  const double owed = spending.spent - share(policy) * static_cast<double>(spending.trained);
  return policy.window.every == 0 && owed >= share(policy) * kOwedSteps / 2;
}

bool was_shared_lately(const State& state, int64_t step) {
  const int64_t shared = state.spikes.shared_step;
  return shared >= 0 && static_cast<double>(step - shared) < kOwedSteps;
}

int64_t steps_until_paid(const State& state, const Policy& policy, int64_t steps, int64_t waiting) {
  const Spending& spending = state.money.spending;
  const double cost = window_cost(policy, steps, speedup_of(state, policy), spending.overhead);
  const Advance advance = advance_of(state, share(policy), cost);
  const double earned = share(policy) * (static_cast<double>(spending.trained) + advance.left());
  const double missing = spending.spent + cost * static_cast<double>(waiting + 1) - earned;
  if (missing <= 0) return 0;
  const double slow = share(policy) * advance.earning();
  const double while_paying_back = slow * advance.steps_left;
  const double wait = missing <= while_paying_back
                          ? missing / slow
                          : advance.steps_left + (missing - while_paying_back) / share(policy);
  return static_cast<int64_t>(std::ceil(wait));
}

}  // namespace gnomon::decide
