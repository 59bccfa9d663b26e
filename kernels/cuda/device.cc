#include "kernels/cuda/device.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cublaslt.h"

namespace gnomon::cuda {

void check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  throw CudaError(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

void check(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("{}: {}", call, GNOMON_LT(cublasLtGetStatusString)(status)));
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw NoCudaDevice(fmt::format("no CUDA device: {}", status == cudaSuccess
                                                             ? "the runtime counts none"
                                                             : cudaGetErrorString(status)));
  }
  return count;
}

void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

DeviceInfo device_info() {
  device_count();
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  DeviceInfo info{
      properties.name, properties.major, properties.minor, 0, 0, GNOMON_LT(cublasLtGetVersion)()};
  check(cudaDriverGetVersion(&info.driver_version), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&info.runtime_version), "cudaRuntimeGetVersion");
  return info;
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, bytes), fmt::format("cudaMalloc of {} bytes", bytes));
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceBuffer::copy_from_host(const void* from, size_t bytes) {
  GNOMON_ASSERT(bytes <= bytes_);
  check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceBuffer::copy_to_host(void* to, size_t bytes) const {
  GNOMON_ASSERT(bytes <= bytes_);
  check(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

void synchronize() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

}  // namespace gnomon::cuda
