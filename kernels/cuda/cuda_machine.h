// The CUDA device that the process has chosen, as the backend's machine.
#pragma once

#include <memory>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/machine.h"

namespace gnomon::cuda {

// The environment's GNOMON_ATTENTION. Throws ConfigError.
AttentionChoice attention_choice_of_environment();

// With a stream of its own. Warnings go to stderr. Throws NoCudaDevice; CudaError for a device
// without FP8, naming it; what make_attention() throws.
std::unique_ptr<Machine> make_cuda_machine(
    AttentionChoice choice = attention_choice_of_environment());

}  // namespace gnomon::cuda
