#include "kernels/start_collectives.h"

#include <algorithm>
#include <cstdlib>

#include "base/errors.h"
#ifdef GNOMON_MPI
#include "kernels/cpu/mpi_collectives.h"
#endif

namespace gnomon {
namespace {

int ranks_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

// By what the launchers of Open MPI, MPICH and SLURM leave in the environment.
bool started_as_one_of_several() {
  if (std::max(ranks_in("OMPI_COMM_WORLD_SIZE"), ranks_in("PMI_SIZE")) > 1) return true;
  return ranks_in("SLURM_STEP_NUM_TASKS") > 1 && std::getenv("SLURM_PROCID") != nullptr;
}

}  // namespace

std::unique_ptr<Collectives> start_collectives([[maybe_unused]] double timeout_seconds) {
  if (!started_as_one_of_several()) return make_single_collectives();
#ifdef GNOMON_MPI
  return make_mpi_collectives(timeout_seconds);
#else
  throw Error(
      "started as one of several ranks, but this build has no MPI: install an MPI library "
      "(libopenmpi-dev) and build again, or start a single process");
#endif
}

}  // namespace gnomon
