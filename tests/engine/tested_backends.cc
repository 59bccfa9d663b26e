#include "tests/engine/tested_backends.h"

#include "kernels/cuda/backend.h"

namespace gnomon::test {

const BackendMakers& tested_backends() {
  static const BackendMakers makers = [] {
    BackendMakers made;
    made.bf16 = [](int) { return cuda::make_backend(tested_machine()); };
    return made;
  }();
  return makers;
}

BackendMakers tested_backends(Recordings& seen) {
  BackendMakers makers;
  makers.bf16 = [&seen](int) {
    return cuda::make_backend(std::make_unique<ObservedMachine>(tested_machine(), seen));
  };
  return makers;
}

}  // namespace gnomon::test
