// On what the tests of the CUDA backend run: emulated on the CPU, or on a GPU. The same sources are
// built for both.
#pragma once

#include "kernels/backend.h"

namespace gnomon::test {

BackendMakers tested_backends();
// A GPU is fast enough for longer runs of larger models.
bool on_a_gpu();

}  // namespace gnomon::test
