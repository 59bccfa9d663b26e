#include "storage/prepare.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sentencepiece_processor.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/errors.h"
#include "base/files.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class PrepareTest : public testing::Test {
 protected:
  PrepareTest() {
    options_.inputs = {in_.path()};
    options_.output = out_;
  }
  Dataset prepare() {
    info_ = prepare_dataset(options_);
    return Dataset::open(out_, DatasetCheck::kContents);
  }
  std::string refusal() {
    std::string message = message_of<ConfigError>([&] { prepare_dataset(options_); });
    EXPECT_FALSE(fs::exists(out_ / "dataset.json"));
    return message;
  }
  // Every file of the dataset with its bytes.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(out_))
      files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  }
  void put_english(int files, int lines) {
    const char* words[] = {"the", "gradient", "of", "a",   "tensor",
                           "is",  "scaled",   "by", "its", "amax"};
    unsigned state = 1;
    for (int file = 0; file < files; ++file) {
      std::string text;
      for (int line = 0; line < lines; ++line) {
        for (int word = 0; word < 8; ++word) {
          state = state * 1664525u + 1013904223u;
          text += word == 0 ? "    " : " ";
          text += words[(state >> 16) % 10];
        }
        text += fmt::format(", {}.\n", line * 37);
      }
      put(in_ / fmt::format("doc{}.txt", file), text);
    }
  }

  TemporaryDirectory in_;
  TemporaryDirectory parent_;
  fs::path out_ = parent_ / "dataset";
  PrepareOptions options_;
  DatasetInfo info_;
};

std::vector<int32_t> all_tokens(const TokenShards& shards) {
  std::vector<int32_t> tokens(static_cast<size_t>(shards.tokens()));
  shards.read(0, tokens);
  return tokens;
}

// The documents of a byte dataset, without their end-of-text tokens.
std::vector<std::string> byte_documents(const TokenShards& shards) {
  std::vector<std::string> documents(1);
  for (int32_t token : all_tokens(shards)) {
    if (token == 256)
      documents.emplace_back();
    else
      documents.back() += static_cast<char>(token);
  }
  EXPECT_EQ(documents.back(), "") << "the last document is not ended";
  documents.pop_back();
  return documents;
}

TEST_F(PrepareTest, BytesKeepEveryByteOfEveryDocumentInSortedOrder) {
  std::string all_bytes(256, '\0');
  std::iota(all_bytes.begin(), all_bytes.end(), '\0');
  put(in_ / "b.txt", all_bytes);
  put(in_ / "a/z.md", "zed");
  put(in_ / "a.py", "print(1)\n");
  put(in_ / "c.rst", "");
  put(in_ / "ignored.bin", "binary");
  options_.heldout_share = 1e-9;  // then the document with the lowest key is held out
  Dataset data = prepare();
  std::vector<std::string> train = byte_documents(data.train);
  std::vector<std::string> heldout = byte_documents(data.heldout);
  ASSERT_EQ(train.size(), 2u);
  ASSERT_EQ(heldout.size(), 1u);
  std::vector<std::string> order = {"print(1)\n", "zed", all_bytes};  // a.py < a/z.md < b.txt
  std::erase(order, heldout[0]);
  EXPECT_EQ(train, order);
  EXPECT_EQ(data.info.vocabulary, 257);
  EXPECT_EQ(data.info.tokenizer, "bytes");
  EXPECT_EQ(data.info.documents, 3);
  EXPECT_EQ(data.info.input_bytes, 268);
  EXPECT_EQ(data.info.heldout_bytes, static_cast<int64_t>(heldout[0].size()));
  EXPECT_EQ(data.info.train_tokens + data.info.heldout_tokens, 268 + 3);
  EXPECT_EQ(info_.content_hash, data.info.content_hash);
}

TEST_F(PrepareTest, JsonlLinesAreDocuments) {
  put(in_ / "d.jsonl",
      "{\"id\": 1, \"text\": \"one\"}\n\n{\"text\": \"tw\\u00f6\\n\"}\r\n{\"text\": "
      "\"\"}\n{\"text\": \"3\"}");
  options_.heldout_share = 1e-9;
  Dataset data = prepare();
  std::vector<std::string> documents = byte_documents(data.train);
  for (const std::string& held : byte_documents(data.heldout)) documents.push_back(held);
  EXPECT_THAT(documents, testing::UnorderedElementsAre("one", "tw\xc3\xb6\n", "3"));
}

TEST_F(PrepareTest, JsonlFieldCanBeChosen) {
  put(in_ / "d.jsonl", "{\"body\": \"one\", \"text\": 5}\n{\"body\": \"two\"}\n");
  options_.jsonl_field = "body";
  prepare();
  EXPECT_EQ(info_.documents, 2);
}

TEST_F(PrepareTest, BadJsonlLinesNameFileLineByteAndExpectation) {
  struct Case {
    const char* line;
    const char* found;
  };
  for (const Case& bad :
       {Case{"{\"text\": \"unfinished", "no valid JSON"}, Case{"[1]", "no object"},
        Case{"{\"txt\": \"a\"}", "no member \"text\""}, Case{"{\"text\": 7}", "no string"},
        Case{"{\"text\": \"a\"} x", "bytes behind the JSON"},
        Case{"{\"text\": \"\xff\"}", "no valid JSON"}}) {
    put(in_ / "d.jsonl", std::string("{\"text\": \"fine\"}\n") + bad.line + "\n");
    try {
      prepare_dataset(options_);
      ADD_FAILURE() << bad.line;
    } catch (const FormatError& error) {
      EXPECT_EQ(error.file(), (in_ / "d.jsonl").string());
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(bad.found),
                        HasSubstr("expected line 2 to be a JSON object with a string \"text\"")));
      EXPECT_GE(error.offset_bytes(), 17);
      EXPECT_LE(error.offset_bytes(), 17 + static_cast<long long>(std::string(bad.line).size()));
    }
    EXPECT_FALSE(fs::exists(out_ / "dataset.json"));
  }
}

TEST_F(PrepareTest, SameInputGivesTheSameBytesWhereverItLies) {
  put_english(20, 30);
  options_.tokenizer = "sentencepiece:300";
  options_.shard_tokens = 1000;
  prepare();
  auto first = contents();
  EXPECT_GT(first.size(), 5u);
  TemporaryDirectory elsewhere;
  fs::copy(in_.path(), elsewhere / "deep", fs::copy_options::recursive);
  options_.inputs = {elsewhere / "deep"};
  prepare();
  EXPECT_EQ(contents(), first);
}

TEST_F(PrepareTest, AnotherInputGivesAnotherContentHash) {
  put_english(3, 3);
  prepare();
  std::string hash = info_.content_hash;
  put(in_ / "doc0.txt", "other");
  prepare();
  EXPECT_NE(info_.content_hash, hash);
}

TEST_F(PrepareTest, HeldOutShareIsNearTheOneAskedFor) {
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += "{\"text\": \"0123456789\"}\n";
  put(in_ / "d.jsonl", lines);
  options_.heldout_share = 0.1;
  Dataset data = prepare();
  EXPECT_NEAR(static_cast<double>(data.info.heldout_tokens) / (4000 * 11), 0.1, 0.02);
}

TEST_F(PrepareTest, TheSplitOfADocumentDoesNotDependOnTheOthers) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
  put(in_ / "d.jsonl", lines);
  options_.heldout_share = 0.2;
  auto before = byte_documents(prepare().heldout);
  put(in_ / "a.txt", "in front");
  put(in_ / "z.txt", "behind");
  auto after = byte_documents(prepare().heldout);
  std::erase(after, "in front");
  std::erase(after, "behind");
  EXPECT_EQ(after, before);
}

TEST_F(PrepareTest, BothSplitsGetADocumentWhateverTheShare) {
  for (int i = 0; i < 5; ++i) put(in_ / fmt::format("d{}.txt", i), "text");
  options_.heldout_share = 1e-12;
  EXPECT_EQ(byte_documents(prepare().heldout).size(), 1u);
  options_.heldout_share = 1 - 1e-12;
  EXPECT_EQ(byte_documents(prepare().train).size(), 1u);
}

TEST_F(PrepareTest, TheEndOfASingleDocumentIsHeldOutFromALinesStart) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {}\n", 100 + i);
  put(in_ / "only.txt", text);
  options_.heldout_share = 0.1;
  Dataset data = prepare();
  EXPECT_THAT(byte_documents(data.train), ElementsAre(text.substr(0, 810)));
  EXPECT_THAT(byte_documents(data.heldout), ElementsAre(text.substr(810)));
}

TEST_F(PrepareTest, SingleLineIsCutBetweenCharacters) {
  put(in_ / "only.txt", "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9");
  options_.heldout_share = 0.3;  // 5.6 bytes would be trained on
  Dataset data = prepare();
  EXPECT_THAT(byte_documents(data.heldout), ElementsAre("\xc3\xa9\xc3\xa9"));
}

TEST_F(PrepareTest, ShardsAreBoundedAndNumbered) {
  put(in_ / "a.txt", std::string(1000, 'a'));
  put(in_ / "b.txt", std::string(1000, 'b'));
  options_.shard_tokens = 300;
  prepare();
  std::vector<std::string> names;
  for (const auto& [name, bytes] : contents()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("dataset.json", "heldout_000000.bin", "heldout_000001.bin",
                                 "heldout_000002.bin", "heldout_000003.bin", "train_000000.bin",
                                 "train_000001.bin", "train_000002.bin", "train_000003.bin"));
  EXPECT_EQ(TokenShards({out_ / "train_000002.bin"}).tokens(), 300);
  EXPECT_EQ(TokenShards({out_ / "train_000003.bin"}).tokens(), 101);
}

TEST_F(PrepareTest, SentencePieceGivesTheTextBackExactly) {
  put_english(30, 40);
  const std::string odd =
      "  two  spaces\tand a tab\n\n\ncaf\xc3\xa9 \xf0\x9f\x8c\x9e ends without a line";
  put(in_ / "odd.txt", odd);
  options_.tokenizer = "sentencepiece:380";
  Dataset data = prepare();
  EXPECT_EQ(data.info.tokenizer, "sentencepiece");
  EXPECT_EQ(data.info.vocabulary, 380);
  EXPECT_EQ(data.info.tokenizer_model, "tokenizer.model");
  EXPECT_EQ(data.info.invalid_utf8_documents, 0);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load((out_ / "tokenizer.model").string()).ok());
  std::vector<std::string> documents;
  for (const TokenShards* shards : {&data.train, &data.heldout}) {
    std::vector<int> ids;
    for (int32_t token : all_tokens(*shards)) {
      if (token != processor.eos_id()) {
        ids.push_back(token);
        continue;
      }
      documents.emplace_back();
      ASSERT_TRUE(processor.Decode(ids, &documents.back()).ok());
      ids.clear();
    }
  }
  std::vector<std::string> expected = {odd};
  for (int i = 0; i < 30; ++i) expected.push_back(read_file(in_ / fmt::format("doc{}.txt", i)));
  EXPECT_THAT(documents, testing::UnorderedElementsAreArray(expected));
  EXPECT_LT(data.info.train_tokens + data.info.heldout_tokens, data.info.input_bytes / 2);
}

TEST_F(PrepareTest, LongDocumentsAreEncodedInPiecesWithoutLoss) {
  std::string text;
  while (text.size() < 1'500'000) text += "a line of the long document\n";
  put(in_ / "long.txt", text);
  put(in_ / "short.txt", "short");
  options_.tokenizer = "sentencepiece:290";
  Dataset data = prepare();
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load((out_ / "tokenizer.model").string()).ok());
  for (const TokenShards* shards : {&data.train, &data.heldout}) {
    std::vector<int32_t> tokens = all_tokens(*shards);
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), processor.eos_id()), 1);
    tokens.pop_back();
    std::string decoded;
    ASSERT_TRUE(processor.Decode(tokens, &decoded).ok());
    EXPECT_TRUE(decoded == text || decoded == "short");
  }
}

TEST_F(PrepareTest, AnExistingModelIsUsedAndCopied) {
  put_english(10, 40);
  options_.tokenizer = "sentencepiece:300";
  prepare();
  auto trained = contents();
  put(parent_ / "mine.model", trained["tokenizer.model"]);
  options_.tokenizer = (parent_ / "mine.model").string();
  prepare();
  EXPECT_EQ(contents(), trained);
}

TEST_F(PrepareTest, TextThatIsNoUtf8IsCountedWithSentencePiece) {
  put_english(10, 40);
  put(in_ / "latin.txt", "caf\xe9 the gradient");
  options_.tokenizer = "sentencepiece:300";
  prepare();
  EXPECT_EQ(info_.invalid_utf8_documents, 1);
}

TEST_F(PrepareTest, TheHeldOutSplitDoesNotTrainTheTokenizer) {
  put_english(10, 40);
  options_.heldout_share = 1e-12;  // exactly one document
  options_.tokenizer = "sentencepiece:300";
  Dataset data = prepare();
  auto model = contents()["tokenizer.model"];
  std::string held;
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.LoadFromSerializedProto(model).ok());
  std::vector<int32_t> tokens = all_tokens(data.heldout);
  tokens.pop_back();
  ASSERT_TRUE(processor.Decode(tokens, &held).ok());
  int changed = 0;
  for (int i = 0; i < 10; ++i) {
    fs::path path = in_ / fmt::format("doc{}.txt", i);
    if (read_file(path) != held) continue;
    put(path, std::string(5000, 'q') + "zzzz zzzz zzzz zzzz\n");
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  prepare();
  EXPECT_EQ(contents()["tokenizer.model"], model);
}

TEST_F(PrepareTest, OptionsThatCannotBeAreConfigErrors) {
  put(in_ / "a.txt", "text");
  auto with = [&](auto change) {
    PrepareOptions good = options_;
    change(options_);
    std::string message = refusal();
    options_ = good;
    return message;
  };
  EXPECT_THAT(
      with([](auto& o) { o.tokenizer = "bpe"; }),
      HasSubstr("--tokenizer = bpe: not accepted; expected bytes, sentencepiece:VOCABULARY or"));
  EXPECT_THAT(with([](auto& o) { o.tokenizer = "absent.model"; }),
              HasSubstr("--tokenizer = absent.model"));
  EXPECT_THAT(with([](auto& o) { o.tokenizer = "sentencepiece:"; }), HasSubstr("260 to 1000000"));
  EXPECT_THAT(with([](auto& o) { o.tokenizer = "sentencepiece:2k"; }), HasSubstr("260 to 1000000"));
  EXPECT_THAT(with([](auto& o) { o.tokenizer = "sentencepiece:259"; }),
              HasSubstr("260 to 1000000"));
  EXPECT_THAT(with([](auto& o) { o.heldout_share = 0; }), HasSubstr("--heldout = 0"));
  EXPECT_THAT(with([](auto& o) { o.heldout_share = NAN; }), HasSubstr("--heldout = nan"));
  EXPECT_THAT(with([](auto& o) { o.heldout_share = 1; }), HasSubstr("between 0 and 1"));
  EXPECT_THAT(with([](auto& o) { o.shard_tokens = 0; }), HasSubstr("--shard-tokens = 0"));
  EXPECT_THAT(with([](auto& o) { o.shard_tokens = 1ll << 31; }), HasSubstr("1 to 2147483647"));
  EXPECT_THAT(
      with([](auto& o) { o.inputs = {"/nowhere/at/all"}; }),
      HasSubstr("--input = /nowhere/at/all: not accepted; expected an existing file or directory"));
  EXPECT_THAT(with([](auto& o) { o.inputs = {}; }), HasSubstr("at least one file or directory"));
  EXPECT_THAT(with([](auto& o) { o.extensions = {".html"}; }), HasSubstr("files ending in .html"));
  EXPECT_THAT(with([](auto& o) { o.output = ""; }), HasSubstr("--out: not accepted"));
}

TEST_F(PrepareTest, ASplitWithoutOneWholeSequenceIsRefused) {
  put(in_ / "a.txt", std::string(100, 'a'));
  put(in_ / "b.txt", std::string(40, 'b'));
  options_.sequence_tokens = 41;  // a split of b.txt has 41 tokens, one too few
  std::string message = refusal();
  EXPECT_THAT(message, HasSubstr(fmt::format("--input = {}: not accepted", in_.path().string())));
  EXPECT_THAT(message, HasSubstr("sequences of 41 tokens (--sequence) need at least 42 of each"));
  EXPECT_THAT(message, AnyOf(HasSubstr("gives 101 tokens to train on and 41 held out"),
                             HasSubstr("gives 41 tokens to train on and 101 held out")));
  EXPECT_TRUE(fs::is_empty(out_)) << "something was left behind";
  options_.sequence_tokens = 40;
  EXPECT_EQ(prepare().info.documents, 2);
  options_.sequence_tokens = -1;
  EXPECT_THAT(message_of<ConfigError>([&] { prepare_dataset(options_); }),
              HasSubstr("--sequence = -1"));
}

TEST_F(PrepareTest, AnOutputThatCannotBeWrittenIsNamedAsTheUserNamedIt) {
  put(in_ / "a.txt", "text");
  options_.output = parent_.path();  // so long that nothing in it can have a name
  while (options_.output.string().size() < 4060)
    options_.output /=
        std::string(std::min<size_t>(250, 4080 - options_.output.string().size()), 'd');
  EXPECT_EQ(message_of<SystemError>([&] { prepare_dataset(options_); }),
            fmt::format("cannot write {}: File name too long", options_.output.string()));
}

TEST_F(PrepareTest, EmptyInputIsAConfigError) {
  EXPECT_THAT(refusal(), HasSubstr("a directory with files ending in .txt"));
  put(in_ / "a.txt", "");
  put(in_ / "b.jsonl", "\n\n");
  EXPECT_THAT(refusal(), HasSubstr("some text; it is empty"));
  put(in_ / "a.txt", "x");
  EXPECT_THAT(refusal(), HasSubstr("at least two bytes of text"));
  put(in_ / "a.txt", "xy");
  EXPECT_THAT(byte_documents(prepare().train), ElementsAre("x"));
}

TEST_F(PrepareTest, VocabulariesTheTextCannotGiveSayWhatItCan) {
  put(in_ / "a.txt", "hello world\nfoo bar\n");
  put(in_ / "b.txt", "hello world\nfoo bar\n");
  options_.tokenizer = "sentencepiece:5000";
  EXPECT_THAT(
      refusal(),
      HasSubstr(
          "tokenizer = sentencepiece:5000: not accepted; expected a vocabulary of at most 296"));
  options_.tokenizer = "sentencepiece:262";
  EXPECT_THAT(refusal(), HasSubstr("expected a vocabulary of at least 270"));
}

TEST_F(PrepareTest, AForeignModelFileIsAConfigError) {
  put(in_ / "a.txt", "text");
  put(parent_ / "x.model", "this is no model");
  options_.tokenizer = (parent_ / "x.model").string();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("x.model"), HasSubstr("a SentencePiece model")));
}

TEST_F(PrepareTest, AFolderWithForeignFilesIsLeftAlone) {
  put(in_ / "a.txt", "text");
  put(out_ / "thesis.tex", "precious");
  EXPECT_THAT(refusal(), HasSubstr("\"thesis.tex\" is in it"));
  EXPECT_EQ(contents().size(), 1u);
  options_.output = in_ / "a.txt";
  EXPECT_THAT(message_of<ConfigError>([&] { prepare_dataset(options_); }), HasSubstr("a.txt"));
}

TEST_F(PrepareTest, AnOlderDatasetIsReplacedWhole) {
  put_english(10, 20);
  options_.shard_tokens = 100;
  prepare();
  EXPECT_GT(contents().size(), 20u);
  options_.shard_tokens = 100'000;
  prepare();
  EXPECT_EQ(contents().size(), 3u);
}

TEST_F(PrepareTest, AFailureKeepsTheOlderDatasetAndLeavesNothing) {
  put_english(10, 20);
  prepare();
  auto before = contents();
  put(in_ / "large.txt", std::string(1'000'000, 'x'));
  {
    FileSizeLimit limit(200'000);
    EXPECT_EQ(message_of<SystemError>([&] { prepare_dataset(options_); }),
              fmt::format("cannot write {}: File too large", out_.string()));
  }
  EXPECT_EQ(contents(), before);
}

TEST_F(PrepareTest, ProgressRisesToTheTotal) {
  put_english(10, 20);
  std::vector<int64_t> done;
  int64_t total = 0;
  prepare_dataset(options_, [&](int64_t now, int64_t all) {
    done.push_back(now);
    total = all;
  });
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  EXPECT_GT(total, 0);
}

}  // namespace
}  // namespace gnomon
