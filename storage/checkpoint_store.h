// Checkpoints as directories that are either whole or not there. A checkpoint is written under a
// temporary name, every file synced and hashed, manifest.json (size and hash of each file) last,
// then the directory is renamed and its parent synced. A reader verifies size and hash of every
// file before it trusts any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "storage/safetensors.h"

namespace gnomon {

// The directory is no complete, undamaged checkpoint. what() has the reason, and `previous` the
// newest intact one.
class CheckpointError : public Error {
 public:
  CheckpointError(const std::string& message, std::optional<std::filesystem::path> previous);
  const std::optional<std::filesystem::path>& previous() const { return previous_; }

 private:
  std::optional<std::filesystem::path> previous_;
};

// What goes into one checkpoint. Tensor data must stay alive and unchanged until it is written.
struct CheckpointContent {
  std::string config_json;            // config.json, HF style
  std::vector<TensorView> model;      // model.safetensors
  std::vector<TensorView> optimizer;  // optimizer.safetensors
  std::string trainer_state_json;     // trainer_state.json
};

struct CheckpointInfo {
  std::filesystem::path path;
  int64_t attempt = 0;
  int64_t step = 0;
  int64_t bytes = 0;
  std::string manifest_hash;  // of manifest.json
};

class CheckpointStore {
 public:
  // Creates `root` if need be and removes what crashed writers left under temporary names.
  explicit CheckpointStore(const std::filesystem::path& root);

  std::filesystem::path path_of(int64_t attempt,
                                int64_t step) const;  // root/attempt-0001/step-00000120

  // Writes synchronously. Throws SystemError; then nothing is left under the final name.
  CheckpointInfo write(int64_t attempt, int64_t step, const CheckpointContent& content);

  // All directories with a manifest, by (attempt, step); not verified.
  std::vector<CheckpointInfo> list() const;
  // The newest one that verifies, if any; damaged ones passed over are described in `skipped` (may
  // be null).
  std::optional<CheckpointInfo> newest_intact(std::vector<std::string>* skipped = nullptr) const;

  // Deletes all but the newest `keep_last` and those for which `needed` says true. Returns what was
  // deleted.
  std::vector<CheckpointInfo> retain(int keep_last,
                                     const std::function<bool(const CheckpointInfo&)>& needed);

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path root_;
};

// Attempt and step in a checkpoint's path, whatever its store is called; -1 where there are none. A
// store may have several names, as symbolic links give them.
std::pair<int64_t, int64_t> checkpoint_id(const std::filesystem::path& directory);

// Verifies every file of a checkpoint directory against its manifest and returns its info. Throws
// CheckpointError with the reason (which file; size or hash found and expected) and the previous
// intact checkpoint beside it, SystemError where the system does not let it be read now.
CheckpointInfo verify_checkpoint(const std::filesystem::path& directory);

}  // namespace gnomon
