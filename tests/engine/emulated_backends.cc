#include "tests/engine/emulated_machine.h"
#include "tests/engine/tested_backends.h"

namespace gnomon::test {

std::unique_ptr<cuda::Machine> tested_machine() { return std::make_unique<EmulatedMachine>(); }
bool on_a_gpu() { return false; }

}  // namespace gnomon::test
