// Options that several benchmarks have.
#pragma once

#include <optional>
#include <string>

#include "base/command_line.h"
#include "kernels/devices.h"

namespace gnomon::cli {

// --device, which may be left out.
struct DeviceChoice {
  std::optional<Device> given;

  // Left out, it is the GPU where there is one.
  Device chosen() const {
    if (given) return *given;
    return device_is_there(Device::kCuda) ? Device::kCuda : Device::kCpu;
  }
};

// --device and --threads. Both must outlive the command.
inline void add_bench_device_options(Command& command, DeviceChoice& device, int& threads) {
  command
      .add_option_function<std::string>(
          "--device",
          [&device](const std::string& name) { device.given = device_from_name(name, ""); },
          "What computes (default: cuda where there is a GPU, else cpu)")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("cpu|cuda");
  command.add_option("--threads", threads, "Threads of the host")
      ->check(in_range(1, 1024))
      ->capture_default_str();
}

// --accumulate of one way. It must outlive the command.
inline void add_accumulate_option(Command& command, std::string& accumulate) {
  command
      .add_option("--accumulate", accumulate,
                  "How FP8 products add up: hopper is fast accumulation in the fprop of current, "
                  "delayed and rowwise on a device, and emulated (slow) on the CPU")
      ->check(one_of({"fp32", "hopper"}))
      ->type_name("fp32|hopper")
      ->capture_default_str();
}

}  // namespace gnomon::cli
