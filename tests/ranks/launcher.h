// What Open MPI's launcher is told in tests: more ranks than cores, as root in a container, this
// host alone.
#pragma once

#include <cstdlib>
#include <string>

namespace gnomon::test {

inline void set_launcher_environment() {
  for (const char* setting :
       {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_hwloc_base_binding_policy=none",
        "OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_btl_vader_single_copy_mechanism=none",
        "OMPI_MCA_btl=self,vader", "OMPI_MCA_odls_base_sigkill_timeout=3"}) {
    const std::string text = setting;
    const size_t equals = text.find('=');
    ::setenv(text.substr(0, equals).c_str(), text.substr(equals + 1).c_str(), 1);
  }
}

}  // namespace gnomon::test
