// The CUDA device at hand: whether there is one, what it is, its memory, and errors that say which
// call failed and why. Built where the toolkit is found; no header here needs the toolkit's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

// A call of the driver, the runtime or a library failed.
class CudaError : public Error {
 public:
  using Error::Error;
};

// There is nothing to run on: no device, no driver, or one that is too old for the runtime.
class NoCudaDevice : public Error {
 public:
  using Error::Error;
};

// How many this process sees. Throws NoCudaDevice where it is none.
int device_count();
// For the calling thread; a thread that does not call it has device 0. Throws CudaError.
void use_device(int device);

struct DeviceInfo {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int driver_version = 0;   // CUDA version of the driver, 1000·major + 10·minor
  int runtime_version = 0;  // of the runtime, as above
  size_t cublaslt_version = 0;
  std::string bus_id = {};  // PCI, "0000:01:00.0": by it NVML and people know the device
  bool has_fp8() const { return major > 8 || (major == 8 && minor >= 9); }
  // For cuBLASLt's FP8 products with scales for rows or for blocks in FP32 (its documentation,
  // "Outer vector scaling", "1D and 2D block scaling"): compute capability 9.0 alone.
};

// Describes the current device. Throws NoCudaDevice where there is none that this build has code
// for, with the reason and what helps.
DeviceInfo device_info();

// What cudaGetDeviceCount() found: a status by its name, and how many devices. Versions as above, 0
// where there is no driver; `visible` is CUDA_VISIBLE_DEVICES, nullptr where it is not set.
struct DeviceSearch {
  std::string status = "cudaSuccess";
  int devices = 0;
  int driver_version = 0;
  int runtime_version = 0;
  const char* visible = nullptr;
};
// Why there is no device, a sentence with what helps; empty where there is one.
std::string why_no_device(const DeviceSearch& found);

// True when this build has code for the current device. In a file of the CUDA compiler.
bool has_device_code();

// Memory of the current device, 256-byte aligned, freed with the object. Throws CudaError.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Whole copies of at most bytes(), done when they return.
  void copy_from_host(const void* from, size_t bytes);
  void copy_to_host(void* to, size_t bytes) const;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Waits for all work of the device. Throws CudaError for what failed in it.
void synchronize();

}  // namespace gnomon::cuda
