#include "controller/decide/window_lengths.h"

#include <algorithm>

#include "base/rounding.h"
#include "controller/decide/spending.h"

namespace gnomon::decide {

namespace {
constexpr int64_t kFar = 1'000'000'000'000'000'000;  // beyond all runs; what follows still fits
}  // namespace

WindowLengths asked_lengths(const Policy& policy, int64_t checkpoint_every) {
  const Policy::Window& asked = policy.window;
  WindowLengths made;
  made.unit = std::max<int64_t>(1, checkpoint_every);
  made.steps = round_up(asked.steps, made.unit);
  int64_t every = kFar;
  if (asked.every == 0) {
    every = every_by_budget(policy, made.steps, policy.economics.speedup, 0);
  } else if (asked.every <= kFar / made.steps) {
    every = round_up(asked.every * made.steps, asked.steps) / asked.steps;
  }
  made.every = std::max(made.steps, round_up(every, made.unit));
  return made;
}

int64_t bf16_distance(const Policy& policy, const WindowLengths& lengths) {
  return policy.window.every > 0 ? lengths.every : 2 * lengths.steps;
}

WindowLengths window_lengths(const State& state, const Policy& policy) {
  WindowLengths made = asked_lengths(policy, state.run.checkpoint_every);
  if (state.watch.every > 0)
    made.every = std::max(made.steps, round_up(state.watch.every, made.unit));
  return made;
}

}  // namespace gnomon::decide
