// The options of commands that run an engine from a checkpoint: on what.
#pragma once

#include "base/command_line.h"
#include "kernels/devices.h"
#include "trainer/replay.h"

namespace gnomon::cli {

// --threads and --device. `on` must outlive the command.
inline void add_replay_device_options(Command& command, ReplayDevice& on) {
  command.add_option("--threads", on.threads, "Instead of the checkpoint's (bits then differ)")
      ->check(in_range(1, 1024));
  command
      .add_option_function<std::string>(
          "--device", [&on](const std::string& name) { on.device = device_from_name(name, ""); },
          "Instead of the checkpoint's (bits then differ)")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("cpu|cuda");
}

}  // namespace gnomon::cli
