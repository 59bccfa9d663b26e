// A real training run under the real decision core in one process, without network, ledger or
// clock: the engine trains, checkpoints go to a scratch directory, and whatever the core orders is
// done at once, as supervisor, verifiers and trainer would. What `gnomon bench detect` records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "controller/decide/policy.h"
#include "lab/rehearsal/study_faults.h"
#include "lab/rehearsal/trace.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/engine_ranks.h"

namespace gnomon::rehearsal {

struct RunSetup {
  std::string configuration;   // names for people and statistics: the run without its fault
  std::string fault = "none";  // and what is wrong with it
  EngineConfig engine;         // its faults are the truth; the core does not see them
  PrecisionPlan plan;          // of the first step
  decide::Policy policy;
  bool watched = true;  // without, there is no core: steps and an end
  int64_t steps = 0;    // a multiple of checkpoint_every
  int64_t checkpoint_every = 0;
  Lie lie = Lie::kNone;          // of one of the two verifiers
  int64_t lies_from = 0;         // first step that it lies about
  int64_t perturb = 0;           // other than 0: seed of a rounding error in the weights of step 0
  EngineRanks* ranks = nullptr;  // that train and replay together; must outlive the rehearsal
  // A directory of its own for checkpoints, which are removed as they are no longer needed.
  std::filesystem::path scratch;
};

// The clock is in seconds of an FP8 step: a step in BF16 takes `policy.economics.speedup`, one with
// some sites in BF16 its share of that, an evaluation a third of a BF16 step's work on its tokens.
// Replays stop the run's clock unless spare devices do them (`policy.economics.spare_fraction`).
// The same setup gives the same trace, byte for byte. A run that the core pauses ends there.
// Throws ConfigError for a setup that the engine refuses, or steps that are no multiple.
Trace rehearse(const RunSetup& setup);

}  // namespace gnomon::rehearsal
