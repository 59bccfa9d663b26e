#include "kernels/devices.h"

#include "base/errors.h"
#ifdef GNOMON_CUDA
#include "kernels/comm/launch_variables.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/cuda_machine.h"
#include "kernels/cuda/device.h"
#endif

namespace gnomon {
namespace {

constexpr Device kAll[] = {Device::kCpu, Device::kCuda};

std::unique_ptr<Backend> make_cuda(int) {
#ifdef GNOMON_CUDA
  return cuda::make_backend(cuda::make_cuda_machine(local_rank(environment_variables())));
#else
  throw ConfigError("run", 0, "device", "\"cuda\"",
                    "\"cpu\": this build has no CUDA backend, since no CUDA toolkit was found when "
                    "it was configured");
#endif
}

std::unique_ptr<BackendOf<float>> refuse_fp32(int) {
  throw ConfigError("model", 0, "compute", "\"fp32\"",
                    "\"bf16\" with run.device = \"cuda\", or run.device = \"cpu\"");
}

}  // namespace

std::string device_name(Device device) { return device == Device::kCuda ? "cuda" : "cpu"; }

Device device_from_name(const std::string& name, const std::string& file) {
  for (Device device : kAll) {
    if (device_name(device) == name) return device;
  }
  throw ConfigError(file, 0, "device", name, "cpu, cuda");
}

BackendMakers backend_makers(Device device) {
  if (device == Device::kCpu) return {};
  return {.bf16 = make_cuda, .fp32 = refuse_fp32};
}

std::string device_bus_id([[maybe_unused]] Device device) {
#ifdef GNOMON_CUDA
  if (device == Device::kCuda) return cuda::device_info().bus_id;
#endif
  return {};
}

bool device_is_there(Device device) {
  if (device == Device::kCpu) return true;
#ifdef GNOMON_CUDA
  try {
    cuda::device_info();
    return true;
  } catch (const Error&) {
    return false;
  }
#else
  return false;
#endif
}

}  // namespace gnomon
