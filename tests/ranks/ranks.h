// The ranks of a test program; made by its main().
#pragma once

#include "kernels/comm/collectives.h"
#include "trainer/engine/engine_ranks.h"

namespace gnomon::test {

EngineRanks& ranks();
inline Collectives& collectives() { return *ranks().collectives; }

}  // namespace gnomon::test
