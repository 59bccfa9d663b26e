// The options of commands that run an engine from a checkpoint: on what.
#pragma once

#include <CLI/CLI.hpp>

#include "kernels/devices.h"
#include "trainer/replay.h"

namespace gnomon::cli {

// --threads and --device. `on` must outlive the command.
inline void add_replay_device_options(CLI::App& command, ReplayDevice& on) {
  command.add_option("--threads", on.threads, "Instead of the checkpoint's (bits then differ)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option_function<std::string>(
          "--device", [&on](const std::string& name) { on.device = device_from_name(name, ""); },
          "Instead of the checkpoint's (bits then differ)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("cpu|cuda");
}

}  // namespace gnomon::cli
