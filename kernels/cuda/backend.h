// The CUDA backend: the operations of kernels/backend.h on a device, in the order of its stream.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/machine.h"

namespace gnomon::cuda {

std::unique_ptr<Backend> make_backend(std::unique_ptr<Machine> machine);

}  // namespace gnomon::cuda
