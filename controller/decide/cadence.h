// How often to verify, chosen again and again from what the run has taught so far.
#pragma once

#include <cstdint>
#include <string>

#include "controller/decide/economics.h"

namespace gnomon::decide {

struct CadenceLimits {
  int64_t every_min = 1;  // steps from one window's start to the next
  int64_t every_max = 1'000'000;
  int64_t checkpoint_every = 1;  // the cadence is a multiple of it
  // The cadence stays until another one saves this share of the run's time: near its best the cost
  // is flat, and the hazard's estimate moves a little with every window.
  double gain_min = 0.002;
};

struct Cadence {
  int64_t every = 0;
  bool changed = false;
  double net = 0;          // expected speed-up over BF16 with it
  double net_current = 0;  // and with the cadence that was asked about; 0 when that is not possible
  std::string reason;      // a sentence for people
};

// The best multiple of the checkpoint interval within the limits for this hazard, or `current`
// (0: none yet) while that is possible and not worse by gain_min. What is possible: at least
// every_min and economics' every_min(model), rounded up to checkpoints; at most every_max, rounded
// down, unless the lower end is above it. A function of its arguments alone. Throws ConfigError
// when a model, a hazard or a limit is out of range.
Cadence choose_cadence(const RunModel& model, double hazard, int64_t current,
                       const CadenceLimits& limits);

}  // namespace gnomon::decide
