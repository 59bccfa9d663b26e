// Launchers of ranks in tests: more ranks than cores, this host alone. Open MPI's, as root in a
// container, and one that only sets variables.
#pragma once

#include <string>
#include <vector>

#include "tests/support/child_process.h"

namespace gnomon::test {

// What the launcher, and programs that it starts, need in their environment.
inline ChildOptions launcher_options() {
  return {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                          {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                          {"OMPI_MCA_mpi_yield_when_idle", "1"},
                          {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
                          {"OMPI_MCA_btl", "self,vader"},
                          {"OMPI_MCA_odls_base_sigkill_timeout", "3"}}};
}

enum class Transport { kTcp, kMpi };

// Those that this build has.
inline std::vector<Transport> transports() {
#ifdef GNOMON_MPIEXEC
  return {Transport::kTcp, Transport::kMpi};
#else
  return {Transport::kTcp};
#endif
}
inline std::string transport_name(Transport transport) {
  return transport == Transport::kTcp ? "tcp" : "mpi";
}
// What only a rank of this number has in its environment.
inline std::string rank_variable(Transport transport, int rank) {
  return (transport == Transport::kTcp ? "RANK=" : "OMPI_COMM_WORLD_RANK=") + std::to_string(rank);
}

// `program`, with its path and arguments, as so many ranks.
inline std::vector<std::string> as_ranks([[maybe_unused]] Transport transport, int ranks,
                                         const std::vector<std::string>& program) {
  std::vector<std::string> command = {GNOMON_TCP_RANKS, std::to_string(ranks)};
#ifdef GNOMON_MPIEXEC
  if (transport == Transport::kMpi) command = {GNOMON_MPIEXEC, "-n", std::to_string(ranks)};
#endif
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace gnomon::test
