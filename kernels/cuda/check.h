// Turns the statuses of the runtime and of cuBLASLt into CudaError. Only for files of this folder.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string_view>

namespace gnomon::cuda {

// Throws CudaError with the name of the call and the status in words, unless all is well.
void check(cudaError_t status, std::string_view call);
void check(cublasStatus_t status, std::string_view call);

}  // namespace gnomon::cuda
