#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel.h"

namespace gnomon::cuda {
namespace {

__global__ void nothing_kernel() {}

}  // namespace

bool has_device_code() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, nothing_kernel) == cudaSuccess;
  if (!found) cudaGetLastError();  // it is reported here
  return found;
}

}  // namespace gnomon::cuda
