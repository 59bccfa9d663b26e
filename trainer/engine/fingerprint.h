// The fingerprint of what computes: everything besides state, plan, data and seed that the bits of
// a run depend on. Equal fingerprints promise equal bits, so whatever can change bits belongs here.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/comm/collectives.h"
#include "kernels/comm/launch_variables.h"
#include "protocol/records.h"

namespace gnomon {

// The variables of this environment that choose how libraries and kernels compute, as
// "NAME=value, NAME=value" in the order of their names; empty where there are none. `names` are
// those of the environment.
std::string computing_variables(const std::vector<std::string>& names, const Variables& variables);

// The fingerprint of this process alone: world_size is 1.
Fingerprint process_fingerprint(const BackendBase& backend);

// The fingerprint of all ranks, from that of each. All ranks call it and get the same. Where all
// are alike it is theirs with another world_size. Otherwise it is rank 0's, and `libraries` ends
// with a digest of all in rank order and the ranks that differ: it is equal to that of another job
// only if each rank is equal to the same rank there.
Fingerprint fingerprint_of_ranks(const Fingerprint& own, Collectives& ranks);

// What fingerprint_of_ranks() found to differ, for people; empty where all ranks are alike.
std::string differences_of_ranks(const Fingerprint& of_ranks);

}  // namespace gnomon
