// cuDNN, opened when it is first used. Only for files of this folder.
#pragma once

#include <cudnn_graph.h>

#include <string>
#include <string_view>

#include "base/shared_library.h"
#include "kernels/cuda/device.h"

namespace gnomon::cuda {

// Throws MissingLibrary.
const SharedLibrary& cudnn();

// "9.19.0". Throws MissingLibrary.
std::string cudnn_version();

// cuDNN has no kernel for this; it is no fault of the device.
class NotSupported : public CudaError {
 public:
  using CudaError::CudaError;
};

// Throws NotSupported or another CudaError, with the name of the call, the status and the last
// message of the library, unless all is well.
void check(cudnnStatus_t status, std::string_view call);

}  // namespace gnomon::cuda

// A function of it: GNOMON_CUDNN(cudnnBackendFinalize)(...).
#define GNOMON_CUDNN(name) GNOMON_FROM_LIBRARY(::gnomon::cuda::cudnn(), name)
