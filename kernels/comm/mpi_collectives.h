// Collectives over MPI. Only this library includes mpi.h; it is built where MPI is found.
#pragma once

#include <memory>

#include "kernels/comm/collectives.h"

namespace gnomon {

// Starts MPI and takes MPI_COMM_WORLD; the destructor ends it. Once in a process. A rank that waits
// for longer than `timeout_seconds` inside one operation ends the job. Throws Error when MPI cannot
// be started.
std::unique_ptr<Collectives> make_mpi_collectives(double timeout_seconds);

}  // namespace gnomon
