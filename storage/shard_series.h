// Tokens written to numbered shards of bounded size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/dataset_description.h"
#include "storage/token_shards.h"

namespace gnomon {

class ShardSeries {
 public:
  // Writes directory/train_000000.bin (or heldout_...) and so on, each with `shard_tokens` tokens
  // but the last.
  ShardSeries(std::filesystem::path directory, bool heldout, bool wide, int64_t shard_tokens);

  void append(std::span<const uint32_t> tokens);
  // Finishes the last shard and returns all of them.
  std::vector<ShardDescription> finish();

 private:
  void finish_shard();

  std::filesystem::path directory_;
  bool heldout_;
  bool wide_;
  int64_t shard_tokens_;
  std::optional<ShardWriter> writer_;
  std::vector<ShardDescription> shards_;
};

// True when `name` is one that a dataset directory may hold: a shard, the tokenizer's model or
// dataset.json.
bool is_dataset_file(const std::string& name);

}  // namespace gnomon
