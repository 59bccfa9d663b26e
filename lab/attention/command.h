// `gnomon-gpu-check attention`.
#pragma once

#include "base/command_line.h"

namespace gnomon {

// Adds the command; running it sets `status`. Throws NoCudaDevice where there is no device.
void add_attention_check(Command& app, int& status);

}  // namespace gnomon
