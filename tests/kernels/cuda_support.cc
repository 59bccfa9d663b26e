// The tests' memory and stream on a GPU.
#include <memory>

#include "kernels/cuda/cuda_machine.h"
#include "tests/kernels/device_support.h"

namespace gnomon::cuda::test {
namespace {

Machine& machine() {
  static const std::unique_ptr<Machine> one = make_cuda_machine();
  return *one;
}

}  // namespace

Memory& device_memory() { return machine().memory(); }
Stream device_stream() { return machine().stream(); }

}  // namespace gnomon::cuda::test
