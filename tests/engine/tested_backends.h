// On what the tests of the CUDA backend run: emulated on the CPU, or on a GPU. The same sources are
// built for both.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "tests/engine/observed_machine.h"

namespace gnomon::test {

// Each test program links one of the two.
std::unique_ptr<cuda::Machine> tested_machine();
// A GPU is fast enough for longer runs of larger models.
bool on_a_gpu();

const BackendMakers& tested_backends();
// The same, told of recordings; `seen` must outlive what they make.
BackendMakers tested_backends(Recordings& seen);

}  // namespace gnomon::test
