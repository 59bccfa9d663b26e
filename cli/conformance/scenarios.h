// The other side of a foreign trainer or verifier. A scenario leads it through what a run brings,
// beside a real gnomond, and checks what it does.
#pragma once

#include <string>

#include "cli/conformance/checks.h"
#include "protocol/client_options.h"

namespace gnomon::cli {

struct TrainerScenario {
  ClientOptions access;
  std::string run;                // NAME or NAME/JOB
  double patience_seconds = 120;  // for each thing that is waited for
};

// Waits for the run, then is its operator and its two verifiers: pauses it, asks for a checkpoint,
// finds damage that its FP8 is to blame for, takes it back and ends it. Changes the run's policy.
// Throws as HttpClient does.
void check_trainer(const TrainerScenario& scenario, Checks& checks);

struct VerifierScenario {
  ClientOptions access;
  std::string start;  // URI of a checkpoint
  std::string end;    // and of the one `steps` later
  int64_t start_step = 0;
  int64_t steps = 0;
  std::string checkpoint_format;
  std::string framework;
  std::string plan;  // TOML; empty: everything in FP8
  double patience_seconds = 120;
};

// Registers a run of its own, of which it is the trainer, and looks at what verifiers answer.
void check_verifier(const VerifierScenario& scenario, Checks& checks);

}  // namespace gnomon::cli
