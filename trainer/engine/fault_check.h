// Checks whether a fault can be what it says in a run of this configuration.
#pragma once

#include "trainer/engine/engine.h"

namespace gnomon {

// Throws ConfigError ("fault", key, value, what is accepted): a site, parameter or channel that the
// model does not have, a number out of its range, a fault of FP8 where the run has none.
void check_fault(const Fault& fault, const EngineConfig& config);

}  // namespace gnomon
