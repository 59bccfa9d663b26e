// What the launchers of parallel jobs leave in the environment of each process: how many there are,
// which one this is, and where they meet.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kernels/comm/tcp_rendezvous.h"

namespace gnomon {

// The value of a variable of the environment; nothing where it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Variables environment_variables();

struct Launch {
  enum class By { kNothing, kMpi, kVariables };
  By by = By::kNothing;  // kNothing is a single process
  tcp::Meeting meeting;  // of kVariables
};

// By what Open MPI, MPICH and Slurm with PMI set: MPI, where `with_mpi`. By RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT (torchrun and its like), or by a Slurm step's variables: ranks that
// meet over TCP. Throws Error naming the variable, its value and what would be accepted.
Launch read_launch(const Variables& variables, bool with_mpi);

// Which of its host's processes this one is, and so which of its devices it takes. Nothing where no
// launcher says so. Throws Error as above.
std::optional<int> local_rank(const Variables& variables);

}  // namespace gnomon
