// Token shards in llm.c's format: a header of 256 int32 (magic 20240520, version 1, token count)
// and uint16 tokens, or magic 20240801, version 7 and uint32 tokens. A dataset is a directory with
// train_*.bin and heldout_*.bin, a dataset.json that describes them (tokenizer, vocabulary, counts,
// hashes), and the tokenizer's .model beside them. Shards are read piece by piece: size is
// no limit, 64-bit offsets throughout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gnomon {

inline constexpr int32_t kShardMagic16 = 20240520;
inline constexpr int32_t kShardVersion16 = 1;
inline constexpr int32_t kShardMagic32 = 20240801;
inline constexpr int32_t kShardVersion32 = 7;
inline constexpr int64_t kShardHeaderBytes = 256 * 4;

// Writes one shard: temporary name, fsync, rename. Throws SystemError (disk full names the file).
class ShardWriter {
 public:
  // `wide` chooses uint32 tokens.
  ShardWriter(std::filesystem::path path, bool wide);
  ~ShardWriter();  // without finish(), nothing is left behind
  // Throws Error for a token above 65535 in a shard that is not wide, and past 2^31 - 1 tokens (the
  // header's limit).
  void append(std::span<const uint32_t> tokens);
  int64_t tokens() const;
  // Returns the XXH3-128 of the finished file.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An ordered list of shards read as one long token sequence.
class TokenShards {
 public:
  // Opens and checks every shard: magic, version, the count against the file's size. Throws
  // FormatError naming the file, the offset and what was expected, SystemError, or Error when
  // `paths` is empty.
  explicit TokenShards(const std::vector<std::filesystem::path>& paths);
  ~TokenShards();
  TokenShards(TokenShards&&) noexcept;
  TokenShards& operator=(TokenShards&&) noexcept;

  int64_t tokens() const;  // over all shards
  // Copies tokens [offset, offset + out.size()) of the concatenation, across shard boundaries.
  // Throws FormatError naming the shard and byte offset when a token is >= vocabulary() or the file
  // has become shorter than it was, Error when the range leaves [0, tokens()].
  void read(int64_t offset, std::span<int32_t> out) const;
  // Tokens at or above this are refused by read; 0 (the default) checks nothing.
  void set_vocabulary(int32_t vocabulary);
  int32_t vocabulary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// dataset.json.
struct DatasetInfo {
  std::string tokenizer;  // "bytes" or "sentencepiece"
  int32_t vocabulary = 0;
  std::string tokenizer_model;  // file name beside the shards; empty for bytes
  int64_t train_tokens = 0;
  int64_t heldout_tokens = 0;
  int64_t input_bytes = 0;   // of text, for loss per byte
  std::string content_hash;  // over all shards' hashes: the data's identity
  int64_t documents = 0;
  int64_t heldout_bytes = 0;           // of text, the held-out share of input_bytes
  int64_t invalid_utf8_documents = 0;  // SentencePiece only: bytes that are no UTF-8 became U+FFFD
};

// How far Dataset::open looks. kContents also reads every byte of every shard and compares the
// hashes.
enum class DatasetCheck { kSizes, kContents };

struct Dataset {
  DatasetInfo info;
  TokenShards train;  // both refuse tokens >= info.vocabulary
  TokenShards heldout;

  // Opens DIR: dataset.json must be whole, and every shard it names be there with the size it
  // tells. Throws FormatError or SystemError.
  static Dataset open(const std::filesystem::path& directory,
                      DatasetCheck check = DatasetCheck::kSizes);
};

}  // namespace gnomon
