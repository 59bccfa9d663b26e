// How long after the last result of a window its directive is with the trainer, while runs report;
// and how soon heartbeats are answered meanwhile.
#pragma once

#include "lab/load/daemon.h"
#include "lab/load/load_client.h"

namespace gnomon::bench {

struct DirectiveLoad {
  int runs = 100;         // each with a trainer that waits for directives and reports steps
  double interval = 0.1;  // seconds between two reports of a run; 0: as fast as they are answered
};

struct DirectiveTimes {
  Latencies directives;  // from the last answer of a verifier to the trainer's side
  Latencies heartbeats;
  double reports_per_second = 0;
};

// A policy under which results of a large gap lead to a directive.
std::string directive_policy();

// Each run gets one directive. Throws Error when one does not come.
DirectiveTimes measure_directives(BenchDaemon& daemon, const DirectiveLoad& load);

}  // namespace gnomon::bench
