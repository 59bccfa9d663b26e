// A stand-in for the driver's libnvidia-ml.so.1: one GPU whose answers stand in the file that
// GNOMON_STANDIN_NVML names, as lines "KEY VALUE". It is read anew at each call, so that a test can
// change the GPU under a running program. Without a key the question is not supported. Keys:
//
//   bus_id     of the one GPU there is
//   name, sm_mhz, memory_mhz, power_mw, power_limit_mw, celsius, memory_used, memory_total,
//   utilization, ecc_corrected, ecc_uncorrected, reasons (the bits), rows_pending, rows_failure
//   fail       every call about the device ends with this nvmlReturn_t
//   fail_KEY   the question that KEY answers does
//   fail_init  nvmlInit_v2 does
//   sleep_ms   every call about the device takes so long
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "kernels/cuda/nvml.h"

namespace gnomon::nvml {
namespace {

using Answers = std::map<std::string, std::string>;

Answers answers() {
  Answers found;
  const char* path = std::getenv("GNOMON_STANDIN_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  std::string key;
  while (file >> key) std::getline(file >> std::ws, found[key]);
  return found;
}

// Its only value is its address: the handle of the one device.
struct {
} the_device;

unsigned long long number(const std::string& text) { return std::stoull(text); }

nvmlReturn_t failure(const Answers& all, const std::string& key) {
  const auto found = all.find(key);
  return found == all.end() ? kSuccess : static_cast<nvmlReturn_t>(number(found->second));
}

// What the file says to `key`, in `value`.
template <class Number>
nvmlReturn_t answer(nvmlDevice_t device, const std::string& key, Number* value) {
  const Answers all = answers();
  if (const auto sleep = all.find("sleep_ms"); sleep != all.end()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(number(sleep->second)));
  }
  constexpr nvmlReturn_t kInvalidArgument = 2;
  if (device != reinterpret_cast<nvmlDevice_t>(&the_device)) return kInvalidArgument;
  for (const std::string& why : {std::string("fail"), "fail_" + key}) {
    if (const nvmlReturn_t result = failure(all, why); result != kSuccess) return result;
  }
  const auto found = all.find(key);
  if (found == all.end()) return kNotSupported;
  *value = static_cast<Number>(number(found->second));
  return kSuccess;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2() { return failure(answers(), "fail_init"); }
nvmlReturn_t nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(nvmlReturn_t result) {
  return result == kGpuIsLost ? "GPU is lost" : result == kNotFound ? "Not Found" : "Other";
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  const Answers all = answers();
  const auto found = all.find("bus_id");
  if (found == all.end() || found->second != bus_id) return kNotFound;
  *device = reinterpret_cast<nvmlDevice_t>(&the_device);
  return kSuccess;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char* name, unsigned int length) {
  const Answers all = answers();
  const auto found = all.find("name");
  if (found == all.end()) return kNotSupported;
  std::strncpy(name, found->second.c_str(), length);
  return kSuccess;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int* mhz) {
  return answer(device, type == kClockSm ? "sm_mhz" : "memory_mhz", mhz);
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  return answer(device, "power_mw", milliwatts);
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* milliwatts) {
  return answer(device, "power_limit_mw", milliwatts);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int, unsigned int* celsius) {
  return answer(device, "celsius", celsius);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const nvmlReturn_t result = answer(device, "memory_used", &memory->used);
  return result == kSuccess ? answer(device, "memory_total", &memory->total) : result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  return answer(device, "utilization", &utilization->gpu);
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error, int,
                                         unsigned long long* count) {
  return answer(device, error == kEccCorrected ? "ecc_corrected" : "ecc_uncorrected", count);
}
#ifdef GNOMON_STANDIN_OLD_DRIVER
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long* bits) {
  return answer(device, "reasons", bits);
}
#else
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* bits) {
  return answer(device, "reasons", bits);
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* corrected,
                                       unsigned int* uncorrected, unsigned int* pending,
                                       unsigned int* failed) {
  *corrected = *uncorrected = 0;
  const nvmlReturn_t result = answer(device, "rows_pending", pending);
  return result == kSuccess ? answer(device, "rows_failure", failed) : result;
}
#endif

}  // extern "C"

}  // namespace gnomon::nvml
