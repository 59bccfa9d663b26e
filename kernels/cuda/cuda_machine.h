// The CUDA device that the process has chosen, as the backend's machine.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cuda/machine.h"

namespace gnomon::cuda {

// On the calling thread's device, with a stream of its own. Where the process is one of several of
// its host, `local_rank` says which, and this thread's device becomes that rank's
// (device_choice.h); other threads have to say so themselves (use_device). Throws NoCudaDevice;
// CudaError for a device without FP8, naming it; Error where a rank has no device.
std::unique_ptr<Machine> make_cuda_machine(std::optional<int> local_rank = {});

}  // namespace gnomon::cuda
