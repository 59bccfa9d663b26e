#include "kernels/cuda/cuda_machine.h"
#include "tests/engine/tested_backends.h"

namespace gnomon::test {

std::unique_ptr<cuda::Machine> tested_machine() { return cuda::make_cuda_machine(); }
bool on_a_gpu() { return true; }

}  // namespace gnomon::test
