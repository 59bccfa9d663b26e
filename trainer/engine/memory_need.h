// What an engine takes of its device's memory, and the refusal where there is not so much.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "trainer/engine/engine.h"

namespace gnomon {

// The arenas of an engine of one of so many ranks, the one that needs most. Takes nothing.
template <class E>
std::vector<ArenaSize> memory_need(const EngineConfig& config, int ranks, BackendOf<E>& backend);

// Throws Error, with the sizes and with what would fit, when the backend's memory says how much of
// it is left and that is less than the arenas and some room for its libraries. `ranks` share
// masters and moments, and weights where the configuration says so.
template <class E>
void check_memory(const EngineConfig& config, int ranks, BackendOf<E>& backend);

}  // namespace gnomon
