// Checkpoints made into plain model directories: config.json and weights, without the state that
// training needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/engine/engine.h"

namespace gnomon {

// Writes `out`, which must not exist, from `source`: a checkpoint of a trainer, or any directory
// that HfCheckpoint opens. Weights are what the source has; with `dtype` kFp32 the FP32 masters of
// a checkpoint that has them, with kBf16 rounded to nearest even. Sharded above `shard_bytes_max`
// (write_safetensors_directory). `out` appears whole or not at all. Returns the names of its files.
// Throws ConfigError when `out` exists, what HfCheckpoint throws, FormatError for masters that do
// not fit config.json, CheckpointError when `source` has a manifest and is damaged, SystemError.
std::vector<std::string> export_hf(const std::filesystem::path& source,
                                   const std::filesystem::path& out, std::optional<Compute> dtype,
                                   int64_t shard_bytes_max);

}  // namespace gnomon
