// The CUDA device that the process has chosen, as the backend's machine.
#pragma once

#include <memory>

#include "kernels/cuda/machine.h"

namespace gnomon::cuda {

// With a stream of its own. Throws NoCudaDevice; CudaError for a device without FP8, naming it.
std::unique_ptr<Machine> make_cuda_machine();

}  // namespace gnomon::cuda
