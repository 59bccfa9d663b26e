#include "kernels/cuda/backend.h"
#include "tests/engine/emulated_machine.h"
#include "tests/engine/tested_backends.h"

namespace gnomon::test {

BackendMakers tested_backends() {
  BackendMakers makers;
  makers.bf16 = [](int threads) {
    return cuda::make_backend(std::make_unique<EmulatedMachine>(), threads);
  };
  return makers;
}

bool on_a_gpu() { return false; }

}  // namespace gnomon::test
