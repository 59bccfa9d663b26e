// NVML, the part of NVIDIA's driver that says how a GPU is: what we call of it, declared here
// because it needs the driver alone and the driver brings no header. Names, values and layouts are
// those of its stable binary interface; those that end in _v2 are the ones to which the vendor's
// own header leads their names without it.
#pragma once

#include "base/shared_library.h"

namespace gnomon::nvml {

extern "C" {

using nvmlReturn_t = int;
using nvmlDevice_t = struct nvmlDevice_st*;

struct nvmlMemory_t {
  unsigned long long total;  // bytes, all three
  unsigned long long free;
  unsigned long long used;
};

struct nvmlUtilization_t {
  unsigned int gpu;  // per cent of the last sampling period, both
  unsigned int memory;
};

nvmlReturn_t nvmlInit_v2();
nvmlReturn_t nvmlShutdown();
const char* nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int* mhz);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* milliwatts);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int* celsius);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error, int counter,
                                         unsigned long long* count);
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* bits);
// The name it had before driver 535.
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long* bits);
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* corrected,
                                       unsigned int* uncorrected, unsigned int* pending,
                                       unsigned int* failure);

}  // extern "C"

// nvmlReturn_t.
inline constexpr nvmlReturn_t kSuccess = 0;
inline constexpr nvmlReturn_t kUninitialized = 1;
inline constexpr nvmlReturn_t kNotSupported = 3;
inline constexpr nvmlReturn_t kNotFound = 6;
inline constexpr nvmlReturn_t kDriverNotLoaded = 9;
inline constexpr nvmlReturn_t kTimeout = 10;
inline constexpr nvmlReturn_t kGpuIsLost = 15;
inline constexpr nvmlReturn_t kResetRequired = 16;
inline constexpr nvmlReturn_t kUnknown = 999;

inline constexpr int kClockSm = 1;         // nvmlClockType_t
inline constexpr int kClockMemory = 2;     //
inline constexpr int kSensorGpu = 0;       // nvmlTemperatureSensors_t
inline constexpr int kEccCorrected = 0;    // nvmlMemoryErrorType_t
inline constexpr int kEccUncorrected = 1;  //
inline constexpr int kEccVolatile = 0;     // nvmlEccCounterType_t

// Bits of nvmlDeviceGetCurrentClocksEventReasons.
inline constexpr unsigned long long kReasonIdle = 0x01;
inline constexpr unsigned long long kReasonApplicationsClocks = 0x02;
inline constexpr unsigned long long kReasonSwPowerCap = 0x04;
inline constexpr unsigned long long kReasonHwSlowdown = 0x08;
inline constexpr unsigned long long kReasonSyncBoost = 0x10;
inline constexpr unsigned long long kReasonSwThermalSlowdown = 0x20;
inline constexpr unsigned long long kReasonHwThermalSlowdown = 0x40;
inline constexpr unsigned long long kReasonHwPowerBrake = 0x80;

// The driver's libnvidia-ml.so.1, from where the loader finds it. Throws MissingLibrary.
inline SharedLibrary open_library() {
  return SharedLibrary({.what = "NVML, which says how a GPU is",
                        .file = "libnvidia-ml.so.1",
                        .advice = "It is part of NVIDIA's driver."});
}

}  // namespace gnomon::nvml
