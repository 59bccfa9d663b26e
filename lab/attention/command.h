// `gnomon-gpu-check attention`.
#pragma once

#include <CLI/CLI.hpp>

namespace gnomon {

// Adds the command; running it sets `status`. Throws NoCudaDevice where there is no device.
void add_attention_check(CLI::App& app, int& status);

}  // namespace gnomon
