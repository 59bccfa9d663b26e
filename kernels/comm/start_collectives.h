// The ranks that a program was started with: over MPI where it was found at build time and an MPI
// launcher started them, over TCP where environment variables say who they are. A library of its
// own, so that nothing else needs MPI.
#pragma once

#include <memory>

#include "kernels/comm/collectives.h"

namespace gnomon {

// A rank may be long in one checkpoint or one step; one that is silent for longer is lost.
constexpr double kRankSilenceSecondsMax = 1800;

// The ranks that a launcher started this process as one of (launch_variables.h), else a single
// process. Once in a program; all ranks come to the end of the result. A rank that waits for longer
// than `timeout_seconds` inside one operation ends the job. Throws Error when the variables make no
// sense, and when MPI cannot be started or the ranks do not meet.
std::unique_ptr<Collectives> start_collectives(double timeout_seconds = kRankSilenceSecondsMax);

}  // namespace gnomon
