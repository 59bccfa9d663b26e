#include "tests/fuzz/series_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "base/temporary_directory.h"
#include "storage/dataset_description.h"
#include "storage/hashed_file.h"
#include "storage/token_shards.h"
#include "tests/fuzz/targets.h"

namespace gnomon::fuzz {
namespace {

// Flags in byte 0 of the input.
constexpr int kReadContents = 1;  // the check that reads every byte
constexpr int kCutWhenOpen = 2;   // the first shard of the training split loses its end then

// Flags in a shard's byte 0. Byte 1 says by how much the description's count (upper half) and the
// header's (lower) are wrong, byte 2 how many tokens there are, byte 3 the first one.
constexpr int kHeldout = 1;
constexpr int kWide = 2;
constexpr int kMissing = 4;
constexpr int kHuge = 8;  // counts are wrong by multiples of 2^24
constexpr int kWrongHash = 16;
constexpr int kOtherFormat = 32;  // the header is of the other width
constexpr int kByteBehind = 64;
constexpr int kLies = kMissing | kWrongHash | kOtherFormat | kByteBehind;

constexpr size_t kShardInputBytes = 4;
constexpr size_t kShardsMax = 32;
constexpr size_t kTokensMax = 64;

using Tokens = std::vector<int32_t>;

struct Series {
  DatasetDescription description;
  bool lies = false;
  Tokens tokens[2];  // as written: training, held-out
  std::filesystem::path first_to_train;
};

int64_t wrong_by(int half, bool huge) {
  const int by = half < 8 ? half : half - 16;
  return huge ? int64_t{by} << 24 : by;
}

std::string file_of(const Tokens& tokens, bool wide, bool header_is_wide, int64_t count) {
  std::array<int32_t, 256> header{};
  static_assert(sizeof header == kShardHeaderBytes);
  header[0] = header_is_wide ? kShardMagic32 : kShardMagic16;
  header[1] = header_is_wide ? kShardVersion32 : kShardVersion16;
  header[2] = static_cast<int32_t>(count);
  std::string content(reinterpret_cast<const char*>(header.data()), sizeof header);
  for (const int32_t token : tokens)  // little-endian, like shards
    content.append(reinterpret_cast<const char*>(&token), wide ? 4 : 2);
  return content;
}

void add_shard(const std::filesystem::path& folder, std::span<const uint8_t> bytes,
               Series& series) {
  const int flags = bytes[0];
  const bool wide = (flags & kWide) != 0;
  const bool huge = (flags & kHuge) != 0;
  Tokens tokens(bytes[2] % kTokensMax);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = bytes[3] + static_cast<int32_t>(wide ? i << 14 : i);
  const auto count = std::ssize(tokens);

  ShardDescription shard;
  shard.file = fmt::format("{}.bin", series.description.shards.size());
  shard.heldout = (flags & kHeldout) != 0;
  shard.tokens = std::max<int64_t>(0, count + wrong_by(bytes[1] >> 4, huge));
  std::string content = file_of(tokens, wide, wide != ((flags & kOtherFormat) != 0),
                                count + wrong_by(bytes[1] & 15, huge));
  if ((flags & kByteBehind) != 0) content += '\0';
  const std::filesystem::path file = folder / shard.file;
  write_plainly(file, content);
  shard.xxh3_128 = (flags & kWrongHash) != 0 ? std::string(32, '0') : digest_file(file).xxh3_128;
  if ((flags & kMissing) != 0) std::filesystem::remove(file);

  series.lies = series.lies || (flags & kLies) != 0 || bytes[1] != 0;
  series.tokens[shard.heldout].insert(series.tokens[shard.heldout].end(), tokens.begin(),
                                      tokens.end());
  if (!shard.heldout && series.first_to_train.empty()) series.first_to_train = file;
  series.description.shards.push_back(shard);
}

Series write_series(const std::filesystem::path& folder, std::span<const uint8_t> input) {
  Series series;
  DatasetInfo& info = series.description.info;
  info.tokenizer = "bytes";
  info.vocabulary = input[1] < 128 ? 1 + input[1] : std::numeric_limits<int32_t>::max();
  for (input = input.subspan(2);
       input.size() >= kShardInputBytes && series.description.shards.size() < kShardsMax;
       input = input.subspan(kShardInputBytes)) {
    add_shard(folder, input, series);
  }
  bool has[2] = {false, false};
  for (const ShardDescription& shard : series.description.shards) {
    has[shard.heldout] = true;
    (shard.heldout ? info.heldout_tokens : info.train_tokens) += shard.tokens;
  }
  series.lies = series.lies || !has[0] || !has[1];
  info.content_hash = content_hash(series.description.shards);
  write_plainly(folder / kDatasetFile, to_json(series.description));
  return series;
}

// All of a split in pieces of so many tokens, across the shards' boundaries; nothing when a token
// is none of the vocabulary's or the file has become shorter.
std::optional<Tokens> read_all(const TokenShards& shards, int64_t piece) {
  Tokens all(static_cast<size_t>(shards.tokens()));
  try {
    for (int64_t at = 0; at < shards.tokens(); at += piece) {
      const int64_t count = std::min(piece, shards.tokens() - at);
      shards.read(at, std::span(all).subspan(static_cast<size_t>(at), static_cast<size_t>(count)));
    }
  } catch (const FormatError&) {
    return std::nullopt;
  }
  return all;
}

void check_split(const TokenShards& shards, int64_t described, bool lies, const Tokens& written) {
  require(shards.tokens() == described, "a dataset has not the tokens that its description says");
  const std::optional<Tokens> all = read_all(shards, std::max<int64_t>(1, described));
  require(all == read_all(shards, 3), "tokens depend on the pieces in which they are read");
  const bool all_fit =
      std::ranges::all_of(written, [&](int32_t token) { return token < shards.vocabulary(); });
  require(lies || (all_fit ? all == written : !all), "tokens are not those that were written");
}

}  // namespace

void run_series(std::span<const uint8_t> input) {
  if (input.size() < 2) return;
  const TemporaryDirectory folder;
  const Series series = write_series(folder.path(), input);
  try {
    const DatasetInfo& info = series.description.info;
    const Dataset dataset =
        Dataset::open(folder.path(), (input[0] & kReadContents) != 0 ? DatasetCheck::kContents
                                                                     : DatasetCheck::kSizes);
    check_split(dataset.train, info.train_tokens, series.lies, series.tokens[0]);
    check_split(dataset.heldout, info.heldout_tokens, series.lies, series.tokens[1]);
    if ((input[0] & kCutWhenOpen) == 0) return;
    const auto bytes = std::filesystem::file_size(series.first_to_train);
    if (bytes == kShardHeaderBytes) return;  // no token to lose
    std::filesystem::resize_file(series.first_to_train, bytes - 1);
    require(!read_all(dataset.train, 5), "a shard that was cut is read to its old end");
  } catch (const Error&) {
    require(series.lies, "a dataset that is as it says is refused");
  }
}

}  // namespace gnomon::fuzz
