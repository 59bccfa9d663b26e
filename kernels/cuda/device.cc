#include "kernels/cuda/device.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
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

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The oldest driver for a runtime of CUDA 13 (NVIDIA's table of minor version compatibility).
constexpr const char* kOldestDriver = "580";

}  // namespace

std::string why_no_device(const DeviceSearch& found) {
  if (found.status == "cudaSuccess" && found.devices > 0) return {};
  if (found.driver_version == 0) {
    return fmt::format("no NVIDIA driver is loaded on this machine; CUDA {} needs one from {} on",
                       version_text(found.runtime_version), kOldestDriver);
  }
  if (found.status == "cudaErrorInsufficientDriver") {
    return fmt::format(
        "the driver is older than the toolkit: it is made for CUDA {}, and this build needs {}, "
        "which drivers have from {} on",
        version_text(found.driver_version), version_text(found.runtime_version), kOldestDriver);
  }
  const std::string choice =
      found.visible == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES=\"{}\")", found.visible);
  if (found.status == "cudaSuccess" || found.status == "cudaErrorNoDevice") {
    return "the driver shows no GPU" + choice;
  }
  return fmt::format("{}{}", found.status, choice);
}

DeviceInfo device_info() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  DeviceSearch found{cudaGetErrorName(status), count, 0, 0, std::getenv("CUDA_VISIBLE_DEVICES")};
  cudaDriverGetVersion(&found.driver_version);
  cudaRuntimeGetVersion(&found.runtime_version);
  const std::string why = why_no_device(found);
  if (!why.empty()) throw NoCudaDevice("no CUDA device: " + why);
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  DeviceInfo info{
      properties.name, properties.major, properties.minor, 0, 0, GNOMON_LT(cublasLtGetVersion)()};
  info.driver_version = found.driver_version;
  info.runtime_version = found.runtime_version;
  if (!has_device_code()) {
    throw NoCudaDevice(
        fmt::format("{} (compute capability {}.{}) is a device that this build has no code for; "
                    "expected 8.x (BF16 only) or 9.0 and later",
                    info.name, info.major, info.minor));
  }
  char bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device), "cudaDeviceGetPCIBusId");
  info.bus_id = bus_id;
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
