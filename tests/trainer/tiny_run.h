// A model and a dataset so small that a step takes milliseconds.
#pragma once

#include <filesystem>
#include <string>

namespace gnomon::test {

// Writes a byte dataset of about 200 kB into `directory`.
void make_tiny_dataset(const std::filesystem::path& directory);

// Writes a trainer configuration and returns its path. `extra` is appended.
std::filesystem::path write_tiny_config(const std::filesystem::path& directory,
                                        const std::filesystem::path& data, int steps,
                                        const std::string& extra = {});

}  // namespace gnomon::test
