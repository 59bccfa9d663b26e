// The CUDA device that the process has chosen, as the backend's machine.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/machine.h"

namespace gnomon::cuda {

// The environment's GNOMON_ATTENTION. Throws ConfigError.
AttentionChoice attention_choice_of_environment();

// On the calling thread's device, with a stream of its own. Where the process is one of several of
// its host, `local_rank` says which, and this thread's device becomes that rank's
// (device_choice.h); other threads have to say so themselves (use_device). Warnings go to stderr.
// Throws NoCudaDevice; Error where a rank has no device; what make_attention() throws.
std::unique_ptr<Machine> make_cuda_machine(
    std::optional<int> local_rank = {}, AttentionChoice choice = attention_choice_of_environment());

}  // namespace gnomon::cuda
