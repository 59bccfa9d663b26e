// Options that several benchmarks have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kernels/devices.h"

namespace gnomon::cli {

// --device and --threads. Both must outlive the command.
inline void add_bench_device_options(CLI::App& command, Device& device, int& threads) {
  command
      .add_option_function<std::string>(
          "--device", [&device](const std::string& name) { device = device_from_name(name, ""); },
          "What computes (default: cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("cpu|cuda");
  command.add_option("--threads", threads, "Threads of the host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

}  // namespace gnomon::cli
