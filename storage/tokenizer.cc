#include "storage/tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <regex>
#include <string_view>
#include <unordered_map>

#include "base/errors.h"

namespace gnomon {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<uint32_t>& tokens) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    tokens.insert(tokens.end(), bytes, bytes + text.size());
  }
  int32_t vocabulary() const override { return 257; }
  uint32_t end_of_text() const override { return 256; }
  std::string name() const override { return "bytes"; }
  const std::string& model() const override { return model_; }

 private:
  std::string model_;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& origin) : model_(std::move(model)) {
    sentencepiece::util::Status status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok())
      throw ConfigError("", 0, "--tokenizer", origin,
                        fmt::format("a SentencePiece model ({})", status.ToString()));
    if (processor_.eos_id() < 0)
      throw ConfigError("", 0, "--tokenizer", origin,
                        "a model with an end-of-sentence piece (it separates the documents)");
  }
  void encode(std::string_view text, std::vector<uint32_t>& tokens) const override {
    std::vector<int> ids;
    sentencepiece::util::Status status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) throw Error(fmt::format("SentencePiece: {}", status.ToString()));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  int32_t vocabulary() const override { return processor_.GetPieceSize(); }
  uint32_t end_of_text() const override { return static_cast<uint32_t>(processor_.eos_id()); }
  std::string name() const override { return "sentencepiece"; }
  const std::string& model() const override { return model_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::string model_;
};

class VectorSentences : public sentencepiece::SentenceIterator {
 public:
  explicit VectorSentences(const std::vector<std::string>& sentences)
      : next_(sentences.begin()), end_(sentences.end()) {}
  bool done() const override { return next_ == end_; }
  void Next() override { ++next_; }
  const std::string& value() const override { return *next_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string>::const_iterator next_, end_;
};

// SentencePiece's two complaints about a vocabulary's size, as what it would accept; other errors
// as they are.
std::string accepted_vocabulary(const std::string& error) {
  std::smatch match;
  if (std::regex_search(error, match, std::regex("smaller than required_chars. \\d+ vs (\\d+)")))
    return fmt::format(
        "a vocabulary of at least {}: 256 bytes, 3 control pieces and each "
        "character of this text",
        match.str(1));
  if (std::regex_search(error, match, std::regex("set it to a value <= (\\d+)")))
    return fmt::format("a vocabulary of at most {}: this text has no more pieces to offer",
                       match.str(1));
  return fmt::format("a vocabulary that SentencePiece can train ({})", error);
}

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model,
                                                        const std::string& origin) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), origin);
}

std::string train_sentencepiece(const std::vector<std::string>& sentences, int32_t vocabulary) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocabulary)},
      {"byte_fallback", "true"},
      {"character_coverage", "0.9995"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", "16384"},
      {"shuffle_input_sentence", "false"},
      {"num_threads", "1"},
      {"minloglevel", "4"}};
  VectorSentences iterator(sentences);
  std::string model;
  sentencepiece::util::Status status =
      sentencepiece::SentencePieceTrainer::Train(options, &iterator, &model);
  if (!status.ok())
    throw ConfigError("", 0, "--tokenizer", fmt::format("sentencepiece:{}", vocabulary),
                      accepted_vocabulary(status.ToString()));
  return model;
}

}  // namespace gnomon
