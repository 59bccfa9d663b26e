// manifest.json: which files a checkpoint consists of, with the size and hash of each, and a
// checksum of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gnomon {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kTrainerStateFile[] = "trainer_state.json";

struct ManifestEntry {
  std::string name;
  int64_t bytes = 0;
  std::string xxh3_128;
};

struct CheckpointManifest {
  int64_t attempt = 0;
  int64_t step = 0;
  std::vector<ManifestEntry> files;

  int64_t bytes() const;  // of all files but the manifest
};

std::string to_json(const CheckpointManifest& manifest);
// Accepts exactly what to_json writes: any other byte is damage. Throws FormatError naming `path`.
CheckpointManifest parse_manifest(const std::string& text, const std::filesystem::path& path);

}  // namespace gnomon
