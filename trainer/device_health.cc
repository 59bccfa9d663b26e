#include "trainer/device_health.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <chrono>
#include <limits>

#include "base/wall_clock.h"
#include "kernels/cuda/nvml.h"

namespace gnomon {
namespace {

using nvml::nvmlDevice_t;
using nvml::nvmlReturn_t;

constexpr double kPerThousand = 1e-3;
// Beyond these a driver has written its mark for "not available", not a measurement.
constexpr double kMegahertzMax = 100'000;
constexpr double kWattsMax = 100'000;
constexpr double kCelsiusMax = 200;
constexpr double kPercentMax = 100;

// In the order of kThrottleReasons.
constexpr std::array kReasonBits = {nvml::kReasonIdle,
                                    nvml::kReasonApplicationsClocks,
                                    nvml::kReasonSwPowerCap,
                                    nvml::kReasonHwSlowdown,
                                    nvml::kReasonSyncBoost,
                                    nvml::kReasonSwThermalSlowdown,
                                    nvml::kReasonHwThermalSlowdown,
                                    nvml::kReasonHwPowerBrake};
static_assert(kReasonBits.size() == kThrottleReasons.size());

// True when it says that the device or the driver is gone, and not only that one question has no
// answer.
bool is_end_of_device(nvmlReturn_t result) {
  return result == nvml::kUninitialized || result == nvml::kDriverNotLoaded ||
         result == nvml::kTimeout || result == nvml::kGpuIsLost || result == nvml::kResetRequired;
}

// A function that not every driver has; nullptr where it is not.
template <class F>
F* find(const SharedLibrary& library, const char* name) {
  try {
    return library.function<F>(name);
  } catch (const MissingLibrary&) {
    return nullptr;
  }
}

std::optional<double> up_to(double largest, double value) {
  return value <= largest ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> whole(unsigned long long value) {
  constexpr auto kMax = static_cast<unsigned long long>(std::numeric_limits<int64_t>::max());
  return value <= kMax ? std::optional(static_cast<int64_t>(value)) : std::nullopt;
}

}  // namespace

bool is_pci_bus_id(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != 4 && colon != 8) return false;
  // Behind the domain, with x for a hexadecimal digit.
  constexpr std::string_view kShape = ":xx:xx.x";
  if (text.size() != colon + kShape.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char wanted = i < colon ? 'x' : kShape[i - colon];
    const bool digit = std::isxdigit(static_cast<unsigned char>(text[i])) != 0;
    if (wanted == 'x' ? !digit : text[i] != wanted) return false;
  }
  return true;
}

// Those that an older driver lacks are nullptr there.
struct DeviceHealthReader::Functions {
  decltype(&nvml::nvmlInit_v2) init;
  decltype(&nvml::nvmlShutdown) shutdown;
  decltype(&nvml::nvmlErrorString) error_string;
  decltype(&nvml::nvmlDeviceGetHandleByPciBusId_v2) device_at;
  decltype(&nvml::nvmlDeviceGetName) name;
  decltype(&nvml::nvmlDeviceGetClockInfo) clock;
  decltype(&nvml::nvmlDeviceGetPowerUsage) power;
  decltype(&nvml::nvmlDeviceGetEnforcedPowerLimit) power_limit;
  decltype(&nvml::nvmlDeviceGetTemperature) temperature;
  decltype(&nvml::nvmlDeviceGetMemoryInfo) memory;
  decltype(&nvml::nvmlDeviceGetUtilizationRates) utilization;
  decltype(&nvml::nvmlDeviceGetTotalEccErrors) ecc_errors;
  decltype(&nvml::nvmlDeviceGetCurrentClocksEventReasons) reasons;
  decltype(&nvml::nvmlDeviceGetRemappedRows) remapped_rows;

#define GNOMON_NEED(name) library.function<decltype(nvml::name)>(#name)
#define GNOMON_TRY(name) find<decltype(nvml::name)>(library, #name)
  explicit Functions(const SharedLibrary& library)
      : init(GNOMON_NEED(nvmlInit_v2)),
        shutdown(GNOMON_NEED(nvmlShutdown)),
        error_string(GNOMON_NEED(nvmlErrorString)),
        device_at(GNOMON_NEED(nvmlDeviceGetHandleByPciBusId_v2)),
        name(GNOMON_TRY(nvmlDeviceGetName)),
        clock(GNOMON_TRY(nvmlDeviceGetClockInfo)),
        power(GNOMON_TRY(nvmlDeviceGetPowerUsage)),
        power_limit(GNOMON_TRY(nvmlDeviceGetEnforcedPowerLimit)),
        temperature(GNOMON_TRY(nvmlDeviceGetTemperature)),
        memory(GNOMON_TRY(nvmlDeviceGetMemoryInfo)),
        utilization(GNOMON_TRY(nvmlDeviceGetUtilizationRates)),
        ecc_errors(GNOMON_TRY(nvmlDeviceGetTotalEccErrors)),
        reasons(GNOMON_TRY(nvmlDeviceGetCurrentClocksEventReasons)),
        remapped_rows(GNOMON_TRY(nvmlDeviceGetRemappedRows)) {
    if (reasons == nullptr) reasons = GNOMON_TRY(nvmlDeviceGetCurrentClocksThrottleReasons);
  }
#undef GNOMON_TRY
#undef GNOMON_NEED

  std::string words(nvmlReturn_t result) const {
    const char* text = error_string(result);
    return fmt::format("{} (NVML error {})", text == nullptr ? "no reason given" : text, result);
  }
};

DeviceHealthReader::DeviceHealthReader(std::string bus_id, const SharedLibrary& library)
    : bus_id_(std::move(bus_id)), nvml_(std::make_unique<Functions>(library)) {}

DeviceHealthReader::~DeviceHealthReader() { disconnect(); }

void DeviceHealthReader::disconnect() {
  if (ready_) nvml_->shutdown();
  ready_ = false;
  device_ = nullptr;
}

// Returns whether there is a device to ask; else the reason is in `health`.
bool DeviceHealthReader::connect(DeviceHealth& health) {
  if (device_ != nullptr) return true;
  nvmlReturn_t result = nvml_->init();
  if (result != nvml::kSuccess) {
    health.error = "NVML does not start: " + nvml_->words(result);
    return false;
  }
  ready_ = true;
  nvmlDevice_t device = nullptr;
  result = nvml_->device_at(bus_id_.c_str(), &device);
  if (result != nvml::kSuccess) {
    health.error = fmt::format("NVML gives no GPU at {}: {}", bus_id_, nvml_->words(result));
    return false;
  }
  device_ = device;
  std::array<char, 96> name{};
  if (nvml_->name != nullptr &&
      nvml_->name(device, name.data(), name.size() - 1) == nvml::kSuccess) {
    name_ = name.data();
  }
  return true;
}

DeviceHealth DeviceHealthReader::read() {
  DeviceHealth health;
  health.device = bus_id_;
  health.time = now_seconds();
  if (connect(health)) ask(health);
  health.name = name_;
  if (!health.error.empty()) {
    // One number of a device that is gone is worth no more than none.
    health = {
        .device = health.device, .name = health.name, .time = health.time, .error = health.error};
    disconnect();
  }
  return health;
}

void DeviceHealthReader::ask(DeviceHealth& health) {
  auto* const device = static_cast<nvmlDevice_t>(device_);
  bool any = false;
  nvmlReturn_t failure_of_one = nvml::kSuccess;
  // True when the function is there and has answered. Of a GPU that is gone nothing more is asked:
  // it may keep each call waiting.
  const auto answers = [&](auto* function, auto... arguments) {
    if (function == nullptr || !health.error.empty()) return false;
    const nvmlReturn_t result = function(device, arguments...);
    if (is_end_of_device(result)) health.error = "the GPU does not answer: " + nvml_->words(result);
    if (result != nvml::kSuccess && result != nvml::kNotSupported) failure_of_one = result;
    any = any || result == nvml::kSuccess;
    return result == nvml::kSuccess;
  };
  unsigned int number = 0;
  unsigned long long count = 0;
  if (answers(nvml_->clock, nvml::kClockSm, &number))
    health.sm_clock_mhz = up_to(kMegahertzMax, number);
  if (answers(nvml_->clock, nvml::kClockMemory, &number))
    health.memory_clock_mhz = up_to(kMegahertzMax, number);
  if (answers(nvml_->power, &number)) health.power_watts = up_to(kWattsMax, number * kPerThousand);
  if (answers(nvml_->power_limit, &number))
    health.power_limit_watts = up_to(kWattsMax, number * kPerThousand);
  if (answers(nvml_->temperature, nvml::kSensorGpu, &number))
    health.temperature_celsius = up_to(kCelsiusMax, number);
  nvml::nvmlMemory_t memory{};
  if (answers(nvml_->memory, &memory) && memory.used <= memory.total) {
    health.memory_used_bytes = whole(memory.used);
    health.memory_total_bytes = whole(memory.total);
  }
  nvml::nvmlUtilization_t utilization{};
  if (answers(nvml_->utilization, &utilization))
    health.utilization_percent = up_to(kPercentMax, utilization.gpu);
  if (answers(nvml_->ecc_errors, nvml::kEccCorrected, nvml::kEccVolatile, &count))
    health.ecc_corrected = whole(count);
  if (answers(nvml_->ecc_errors, nvml::kEccUncorrected, nvml::kEccVolatile, &count)) {
    health.ecc_uncorrected = whole(count);
  }
  if (answers(nvml_->reasons, &count)) {
    health.throttle_reasons.emplace();
    for (size_t i = 0; i < kReasonBits.size(); ++i) {
      if ((count & kReasonBits[i]) == 0) continue;
      health.throttle_reasons->push_back(ThrottleReason::on_record(kThrottleReasons[i]));
    }
  }
  unsigned int corrected = 0, uncorrected = 0, pending = 0, failure = 0;
  if (answers(nvml_->remapped_rows, &corrected, &uncorrected, &pending, &failure)) {
    health.remapped_rows_pending = pending != 0;
    health.remapped_rows_failure = failure != 0;
  }
  if (!any && health.error.empty() && failure_of_one != nvml::kSuccess)
    health.error = "the GPU tells nothing: " + nvml_->words(failure_of_one);
}

}  // namespace gnomon
