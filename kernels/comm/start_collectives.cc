#include "kernels/comm/start_collectives.h"

#include "base/errors.h"
#include "kernels/comm/launch_variables.h"
#include "kernels/comm/tcp_collectives.h"
#ifdef GNOMON_MPI
#include "kernels/comm/mpi_collectives.h"
#endif

namespace gnomon {
namespace {

#ifdef GNOMON_MPI
constexpr bool kWithMpi = true;
#else
constexpr bool kWithMpi = false;
#endif

}  // namespace

std::unique_ptr<Collectives> start_collectives(double timeout_seconds) {
  const Launch launch = read_launch(environment_variables(), kWithMpi);
  switch (launch.by) {
    case Launch::By::kNothing:
      return make_single_collectives();
    case Launch::By::kVariables:
      return make_tcp_collectives(launch.meeting, timeout_seconds);
    case Launch::By::kMpi:
#ifdef GNOMON_MPI
      return make_mpi_collectives(timeout_seconds);
#endif
      break;
  }
  GNOMON_ASSERT(false);
  return nullptr;
}

}  // namespace gnomon
