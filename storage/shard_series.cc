#include "storage/shard_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace gnomon {

ShardSeries::ShardSeries(std::filesystem::path directory, bool heldout, bool wide,
                         int64_t shard_tokens)
    : directory_(std::move(directory)),
      heldout_(heldout),
      wide_(wide),
      shard_tokens_(shard_tokens) {}

void ShardSeries::append(std::span<const uint32_t> tokens) {
  while (!tokens.empty()) {
    if (!writer_) {
      std::string name =
          fmt::format("{}_{:06}.bin", heldout_ ? "heldout" : "train", shards_.size());
      writer_.emplace(directory_ / name, wide_);
      shards_.push_back({name, heldout_, 0, {}});
    }
    int64_t room = shard_tokens_ - writer_->tokens();
    auto count = std::min(tokens.size(), static_cast<size_t>(room));
    writer_->append(tokens.first(count));
    tokens = tokens.subspan(count);
    if (writer_->tokens() == shard_tokens_) finish_shard();
  }
}

std::vector<ShardDescription> ShardSeries::finish() {
  if (writer_) finish_shard();
  return shards_;
}

void ShardSeries::finish_shard() {
  shards_.back().tokens = writer_->tokens();
  shards_.back().xxh3_128 = writer_->finish();
  writer_.reset();
}

bool is_dataset_file(const std::string& name) {
  static const std::regex kShard("(train|heldout)_[0-9]{6,}\\.bin");
  return name == kDatasetFile || name == kTokenizerModelFile || std::regex_match(name, kShard);
}

}  // namespace gnomon
