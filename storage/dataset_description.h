// dataset.json: what the shards of a dataset directory are, with the size and hash of each.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "storage/token_shards.h"

namespace gnomon {

inline constexpr char kDatasetFile[] = "dataset.json";
inline constexpr char kTokenizerModelFile[] = "tokenizer.model";

struct ShardDescription {
  std::string file;  // beside dataset.json
  bool heldout = false;
  int64_t tokens = 0;
  std::string xxh3_128;
};

struct DatasetDescription {
  DatasetInfo info;
  std::vector<ShardDescription> shards;  // in order, train before held-out
};

// The identity of the data: over the shards' splits and hashes.
std::string content_hash(const std::vector<ShardDescription>& shards);

std::string to_json(const DatasetDescription& description);
// Throws FormatError or SystemError.
DatasetDescription read_dataset_description(const std::filesystem::path& directory);

}  // namespace gnomon
