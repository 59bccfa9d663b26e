#include "storage/token_shards.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>

#include "base/errors.h"
#include "base/files.h"
#include "storage/hashed_file.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path write_shard(const std::filesystem::path& path, bool wide,
                                  const std::vector<uint32_t>& tokens) {
  ShardWriter writer(path, wide);
  writer.append(tokens);
  writer.finish();
  return path;
}

std::vector<int32_t> read_tokens(const TokenShards& shards, int64_t offset, size_t count) {
  std::vector<int32_t> tokens(count, -1);
  shards.read(offset, tokens);
  return tokens;
}

// A shard whose header counts `tokens` and whose zeros are a hole, with `last` as its last token.
template <typename Stored>
void write_sparse_shard(const std::filesystem::path& path, int32_t magic, int32_t version,
                        int32_t tokens, Stored last) {
  FileDescriptor fd = FileDescriptor::open(path, O_WRONLY | O_CREAT | O_TRUNC);
  int32_t header[256] = {magic, version, tokens};
  write_all(fd.get(), {reinterpret_cast<const char*>(header), sizeof header}, path);
  int64_t at = kShardHeaderBytes + (int64_t{tokens} - 1) * static_cast<int64_t>(sizeof last);
  ASSERT_EQ(::pwrite(fd.get(), &last, sizeof last, at), ssize_t{sizeof last});
}

class TokenShardsTest : public testing::Test {
 protected:
  TemporaryDirectory folder_;
};

TEST_F(TokenShardsTest, NarrowShardHasTheBytesOfLlmC) {
  auto path = write_shard(folder_ / "a.bin", false, {1, 256, 65535});
  std::string expected(kShardHeaderBytes, '\0');
  const unsigned char head[] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0};  // 20240520, 1, 3
  std::memcpy(expected.data(), head, sizeof head);
  expected += std::string("\x01\x00\x00\x01\xff\xff", 6);
  EXPECT_EQ(read_file(path), expected);
}

TEST_F(TokenShardsTest, WideShardHasTheBytesOfLlmC) {
  auto path = write_shard(folder_ / "a.bin", true, {7, 128255});
  std::string expected(kShardHeaderBytes, '\0');
  const unsigned char head[] = {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 2, 0, 0, 0};  // 20240801, 7, 2
  std::memcpy(expected.data(), head, sizeof head);
  expected += std::string("\x07\x00\x00\x00\xff\xf4\x01\x00", 8);
  EXPECT_EQ(read_file(path), expected);
}

TEST_F(TokenShardsTest, FinishReturnsTheHashOfTheFile) {
  ShardWriter writer(folder_ / "a.bin", false);
  writer.append(std::vector<uint32_t>{5, 6});
  std::string hash = writer.finish();
  EXPECT_EQ(hash, digest_file(folder_ / "a.bin").xxh3_128);
}

TEST_F(TokenShardsTest, ManyTokensSurviveTheWriteBuffer) {
  std::vector<uint32_t> tokens(3'000'001);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 7919 % 65536);
  TokenShards shards({write_shard(folder_ / "a.bin", false, tokens)});
  auto read = read_tokens(shards, 0, tokens.size());
  EXPECT_TRUE(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
}

TEST_F(TokenShardsTest, EveryRangeAcrossShardsIsTheConcatenation) {
  TokenShards shards({write_shard(folder_ / "a.bin", false, {0, 1, 2}),
                      write_shard(folder_ / "b.bin", false, {}),
                      write_shard(folder_ / "c.bin", true, {3}),
                      write_shard(folder_ / "d.bin", false, {4, 5, 6, 7})});
  ASSERT_EQ(shards.tokens(), 8);
  for (int64_t offset = 0; offset <= 8; ++offset) {
    for (size_t count = 0; offset + static_cast<int64_t>(count) <= 8; ++count) {
      std::vector<int32_t> expected(count);
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(offset));
      EXPECT_EQ(read_tokens(shards, offset, count), expected) << offset << "+" << count;
    }
  }
}

TEST_F(TokenShardsTest, ReadsBehindTwoGibibytes) {
  constexpr int32_t kTokens = 1'200'000'000;  // 2.4 GB
  write_sparse_shard<uint16_t>(folder_ / "big.bin", kShardMagic16, kShardVersion16, kTokens, 4242);
  TokenShards shards({folder_ / "big.bin", write_shard(folder_ / "next.bin", false, {17})});
  EXPECT_EQ(shards.tokens(), int64_t{kTokens} + 1);
  EXPECT_THAT(read_tokens(shards, kTokens - 2, 3), ElementsAre(0, 4242, 17));
}

TEST_F(TokenShardsTest, WideReadsBehindEightGigabytes) {
  constexpr int32_t kTokens = 2'147'483'647;  // the most a header can count: 8.6 GB
  write_sparse_shard<uint32_t>(folder_ / "big.bin", kShardMagic32, kShardVersion32, kTokens,
                               99'999);
  TokenShards shards({folder_ / "big.bin", write_shard(folder_ / "next.bin", false, {17})});
  EXPECT_EQ(shards.tokens(), 2'147'483'648);
  EXPECT_THAT(read_tokens(shards, 2'147'483'645, 3), ElementsAre(0, 99'999, 17));
}

TEST_F(TokenShardsTest, EveryTruncationIsNamedWithItsOffset) {
  auto path = write_shard(folder_ / "a.bin", false, {1, 2, 3});
  std::string whole = read_file(path);
  for (size_t size : {size_t{0}, size_t{1}, size_t{1023}, size_t{1024}, whole.size() - 1}) {
    put(path, std::string_view(whole).substr(0, size));
    try {
      TokenShards shards({path});
      ADD_FAILURE() << "accepted " << size << " bytes";
    } catch (const FormatError& error) {
      EXPECT_EQ(error.file(), path.string());
      EXPECT_EQ(error.offset_bytes(), static_cast<long long>(size));
    }
  }
}

TEST_F(TokenShardsTest, DamagedHeadersSayWhatWasExpectedWhere) {
  auto path = write_shard(folder_ / "a.bin", false, {1, 2, 3});
  const std::string whole = read_file(path);
  auto message_with = [&](size_t at, int32_t value) {
    std::string damaged = whole;
    std::memcpy(damaged.data() + at, &value, sizeof value);
    put(path, damaged);
    return message_of<FormatError>([&] { TokenShards shards({path}); });
  };
  EXPECT_THAT(
      message_with(0, 1234),
      AllOf(HasSubstr(path.string()), HasSubstr("at byte 0: found magic 1234, expected 20240520")));
  EXPECT_THAT(message_with(4, 2), HasSubstr("at byte 4: found version 2, expected 1"));
  EXPECT_THAT(message_with(0, kShardMagic32), HasSubstr("found version 1, expected 7"));
  EXPECT_THAT(message_with(8, -1), HasSubstr("at byte 8: found a count of -1 tokens"));
  EXPECT_THAT(message_with(8, 4),
              HasSubstr("at byte 1030: found a file of 1030 bytes, expected 1032"));
  EXPECT_THAT(message_with(8, 2),
              HasSubstr("at byte 1028: found a file of 1030 bytes, expected 1028"));
}

TEST_F(TokenShardsTest, TokenOutsideTheVocabularyIsNamedWithShardAndByte) {
  auto second = write_shard(folder_ / "b.bin", false, {3, 300, 4});
  TokenShards shards({write_shard(folder_ / "a.bin", false, {1, 2}), second});
  EXPECT_THAT(read_tokens(shards, 0, 5), ElementsAre(1, 2, 3, 300, 4));
  shards.set_vocabulary(300);
  EXPECT_THAT(read_tokens(shards, 0, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(message_of<FormatError>([&] { read_tokens(shards, 0, 5); }),
              AllOf(HasSubstr(second.string()), HasSubstr("at byte 1026: found token 300")));
  shards.set_vocabulary(301);
  EXPECT_THAT(read_tokens(shards, 2, 3), ElementsAre(3, 300, 4));
}

TEST_F(TokenShardsTest, WideTokenThatNoInt32HoldsIsRefusedWithoutAVocabulary) {
  TokenShards shards({write_shard(folder_ / "a.bin", true, {0x7fffffff, 0x80000000})});
  EXPECT_THAT(read_tokens(shards, 0, 1), ElementsAre(0x7fffffff));
  EXPECT_THAT(message_of<FormatError>([&] { read_tokens(shards, 0, 2); }),
              HasSubstr("at byte 1028: found token 2147483648"));
}

TEST_F(TokenShardsTest, RangesOutsideAreRefused) {
  TokenShards shards({write_shard(folder_ / "a.bin", false, {1, 2})});
  EXPECT_THROW(read_tokens(shards, 0, 3), Error);
  EXPECT_THROW(read_tokens(shards, 3, 0), Error);
  EXPECT_THROW(read_tokens(shards, -1, 1), Error);
  EXPECT_THROW(read_tokens(shards, INT64_MAX, 2), Error);
}

TEST_F(TokenShardsTest, AShardCutShortWhileItIsOpenIsAnErrorThatNamesWhere) {
  std::vector<uint32_t> tokens(20'000, 3);
  auto path = write_shard(folder_ / "a.bin", false, tokens);
  TokenShards shards({path});
  std::filesystem::resize_file(path, kShardHeaderBytes + 2 * 9000);
  EXPECT_THAT(read_tokens(shards, 8990, 10), testing::Each(3));
  EXPECT_THAT(message_of<FormatError>([&] { read_tokens(shards, 8990, 11); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("at byte 19024"), HasSubstr("end of the file")));
}

TEST_F(TokenShardsTest, NoPathsMissingFilesAndFoldersAreErrors) {
  EXPECT_THROW(TokenShards({}), Error);
  EXPECT_THAT(message_of<SystemError>([&] { TokenShards shards({folder_ / "absent.bin"}); }),
              HasSubstr("absent.bin: No such file"));
  EXPECT_THAT(message_of<SystemError>([&] { TokenShards shards({folder_.path()}); }),
              HasSubstr("Is a directory"));
}

TEST_F(TokenShardsTest, WriterLeavesNothingWithoutFinish) {
  {
    ShardWriter writer(folder_ / "a.bin", false);
    writer.append(std::vector<uint32_t>{1, 2, 3});
  }
  EXPECT_TRUE(folder_.empty());
}

TEST_F(TokenShardsTest, WriterRefusesWhatTheFormatCannotHold) {
  ShardWriter writer(folder_ / "a.bin", false);
  EXPECT_THAT(message_of<Error>([&] { writer.append(std::vector<uint32_t>{65536}); }),
              HasSubstr("token 65536"));
  constexpr size_t kCount = size_t{1} << 31;
  void* unread =
      ::mmap(nullptr, kCount * 4, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(unread, MAP_FAILED);
  EXPECT_THAT(message_of<Error>([&] {
                writer.append({static_cast<const uint32_t*>(unread), kCount});
              }),
              HasSubstr("at most 2147483647 tokens"));
  ::munmap(unread, kCount * 4);
}

TEST_F(TokenShardsTest, FullDiskNamesTheFileAndLeavesTheOldShard) {
  write_shard(folder_ / "a.bin", false, {9});
  std::vector<uint32_t> tokens(100'000, 1);
  {
    FileSizeLimit limit(50'000);
    EXPECT_THAT(message_of<SystemError>([&] { write_shard(folder_ / "a.bin", false, tokens); }),
                AllOf(HasSubstr("a.bin"), HasSubstr("File too large")));
  }
  std::filesystem::directory_iterator files(folder_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  EXPECT_THAT(read_tokens(TokenShards({folder_ / "a.bin"}), 0, 1), ElementsAre(9));
}

}  // namespace
}  // namespace gnomon
