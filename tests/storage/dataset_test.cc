#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/files.h"
#include "storage/dataset_description.h"
#include "storage/prepare.h"
#include "storage/token_shards.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    put(in_ / "a.txt", std::string(500, 'a'));
    put(in_ / "b.txt", std::string(500, 'b'));
    PrepareOptions options;
    options.inputs = {in_.path()};
    options.output = out_;
    options.shard_tokens = 200;
    prepare_dataset(options);
  }
  std::string error(DatasetCheck check = DatasetCheck::kSizes) const {
    return message_of<FormatError>([&] { Dataset::open(out_, check); });
  }
  void edit(const std::string& from, const std::string& to) const {
    std::string text = read_file(out_ / kDatasetFile);
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    put(out_ / kDatasetFile, text.replace(at, from.size(), to));
  }

  TemporaryDirectory in_, parent_;
  fs::path out_ = parent_ / "dataset";
};

TEST_F(DatasetTest, OpensWithItsVocabularyChecked) {
  Dataset data = Dataset::open(out_);
  EXPECT_EQ(data.train.tokens(), 501);
  EXPECT_EQ(data.heldout.tokens(), 501);
  EXPECT_EQ(data.train.vocabulary(), 257);
  EXPECT_EQ(data.heldout.vocabulary(), 257);
  Dataset::open(out_, DatasetCheck::kContents);
}

TEST_F(DatasetTest, DescriptionSurvivesItsJson) {
  DatasetDescription read = read_dataset_description(out_);
  EXPECT_EQ(to_json(read), read_file(out_ / kDatasetFile));
}

TEST_F(DatasetTest, MissingPiecesAreNamed) {
  fs::remove(out_ / "train_000001.bin");
  EXPECT_THAT(message_of<SystemError>([&] { Dataset::open(out_); }), HasSubstr("train_000001.bin"));
  fs::remove(out_ / kDatasetFile);
  EXPECT_THAT(message_of<SystemError>([&] { Dataset::open(out_); }), HasSubstr("dataset.json"));
}

TEST_F(DatasetTest, AShardOfAnotherLengthIsNamed) {
  fs::copy_file(out_ / "train_000002.bin", out_ / "train_000001.bin",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(error(), AllOf(HasSubstr("train_000001.bin"), HasSubstr("a count of 101 tokens"),
                             HasSubstr("expected 200, as dataset.json says")));
}

TEST_F(DatasetTest, AFlippedBitIsSeenWhenContentsAreChecked) {
  fs::path shard = out_ / "heldout_000000.bin";
  std::string bytes = read_file(shard);
  bytes[1030] ^= 1;
  put(shard, bytes);
  Dataset::open(out_);
  EXPECT_THAT(error(DatasetCheck::kContents),
              AllOf(HasSubstr("heldout_000000.bin"), HasSubstr("contents with the hash")));
}

TEST_F(DatasetTest, DescriptionsThatCannotBeAreRefused) {
  const std::string whole = read_file(out_ / kDatasetFile);
  auto edited = [&](const std::string& from, const std::string& to) {
    put(out_ / kDatasetFile, whole);
    edit(from, to);
    std::string message = error();
    EXPECT_THAT(message, HasSubstr("dataset.json"));
    return message;
  };
  EXPECT_THAT(edited("gnomon-dataset", "another"), HasSubstr("format \"another\""));
  EXPECT_THAT(edited("\"version\": 1", "\"version\": 2"), HasSubstr("found version 2, expected 1"));
  EXPECT_THAT(edited("\"vocabulary\": 257", "\"vocabulary\": 0"), HasSubstr("vocabulary = 0"));
  EXPECT_THAT(edited("\"vocabulary\": 257", "\"vocabulary\": \"x\""), HasSubstr("an integer"));
  EXPECT_THAT(edited("\"vocabulary\": 257,", ""), HasSubstr("no member \"vocabulary\""));
  EXPECT_THAT(edited("\"train_tokens\": 501", "\"train_tokens\": 500"),
              HasSubstr("train_tokens = 500, expected 501"));
  EXPECT_THAT(edited("\"heldout_tokens\": 501", "\"heldout_tokens\": 502"),
              HasSubstr("expected 501"));
  EXPECT_THAT(edited("train_000000.bin", "../a.bin"), HasSubstr("without folders"));
  EXPECT_THAT(edited("\"tokenizer_model\": \"\"", "\"tokenizer_model\": \"../a.model\""),
              HasSubstr("without folders"));
  EXPECT_THAT(edited("\"split\": \"train\"", "\"split\": \"test\""),
              HasSubstr("the split \"test\""));
  EXPECT_THAT(edited("\"tokens\": 200", "\"tokens\": -200"), HasSubstr("an integer of 0 or more"));
  EXPECT_THAT(edited("\"tokens\": 200", "\"tokens\": 9223372036854775807"), HasSubstr("2^63"));
  EXPECT_THAT(edited("\"content_hash\": \"", "\"content_hash\": \"0"), HasSubstr("content_hash 0"));
  EXPECT_THAT(edited("{", ""), HasSubstr("bytes behind the JSON"));
  EXPECT_THAT(edited("\"shards\"", "\"version\""), HasSubstr("the key \"version\" twice"));
  put(out_ / kDatasetFile, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(error(), HasSubstr("no valid JSON"));
}

TEST_F(DatasetTest, AMissingTokenizerModelIsNamed) {
  edit("\"tokenizer_model\": \"\"", "\"tokenizer_model\": \"tokenizer.model\"");
  EXPECT_THAT(message_of<SystemError>([&] { Dataset::open(out_); }), HasSubstr("tokenizer.model"));
}

}  // namespace
}  // namespace gnomon
