#include "controller/decide/window_lengths.h"

#include <algorithm>

#include "base/rounding.h"

namespace gnomon::decide {

namespace {
constexpr int64_t kFar = 1'000'000'000'000'000'000;  // beyond all runs; what follows still fits
}

WindowLengths window_lengths(const Policy::Window& asked, int64_t checkpoint_every, int64_t every) {
  WindowLengths made;
  made.unit = std::max<int64_t>(1, checkpoint_every);
  made.steps = round_up(asked.steps, made.unit);
  if (every <= 0) {
    every = asked.every > kFar / made.steps
                ? kFar
                : round_up(asked.every * made.steps, asked.steps) / asked.steps;
  }
  made.every = std::max(made.steps, round_up(every, made.unit));
  return made;
}

}  // namespace gnomon::decide
