// Datasets made of given or random tokens, for benchmarks and tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace gnomon {

// Writes a dataset directory of one shard for each of `train` and one held-out shard. Throws
// SystemError.
void write_token_dataset(const std::filesystem::path& directory,
                         const std::vector<std::vector<uint32_t>>& train,
                         const std::vector<uint32_t>& heldout, int32_t vocabulary);

// A temporary dataset of `tokens` uniform random tokens; deleted with the object.
class SyntheticData {
 public:
  SyntheticData(const std::filesystem::path& parent, int32_t vocabulary, int64_t tokens);
  ~SyntheticData();
  SyntheticData(const SyntheticData&) = delete;
  SyntheticData& operator=(const SyntheticData&) = delete;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

}  // namespace gnomon
