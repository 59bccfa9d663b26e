// The ranks that a program was started with. With MPI where it was found at build time; a library
// of its own, so that nothing else needs MPI.
#pragma once

#include <memory>

#include "kernels/collectives.h"

namespace gnomon {

// A rank may be long in one checkpoint or one step; one that is silent for longer is lost.
constexpr double kRankSilenceSecondsMax = 1800;

// MPI's ranks when an MPI launcher (mpirun, srun) started this process as one of several, else a
// single process. Once in a program; the result ends MPI when it is destroyed. A rank that waits
// for longer than `timeout_seconds` inside one operation ends the job. Throws Error when MPI cannot
// be started, and when there are several ranks but this build has no MPI.
std::unique_ptr<Collectives> start_collectives(double timeout_seconds = kRankSilenceSecondsMax);

}  // namespace gnomon
