// Open MPI's launcher in tests: more ranks than cores, as root in a container, this host alone.
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

// `program`, with its path and arguments, as so many ranks.
inline std::vector<std::string> as_ranks(int ranks, const std::vector<std::string>& program) {
  std::vector<std::string> command = {GNOMON_MPIEXEC, "-n", std::to_string(ranks)};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace gnomon::test
