// Text → token ids for data preparation: raw bytes, or a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// Immutable, so that threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Appends the tokens of `text`. Throws Error when the library refuses it.
  virtual void encode(std::string_view text, std::vector<uint32_t>& tokens) const = 0;
  virtual int32_t vocabulary() const = 0;
  virtual uint32_t end_of_text() const = 0;
  virtual std::string name() const = 0;          // as in DatasetInfo
  virtual const std::string& model() const = 0;  // contents of tokenizer.model; empty for bytes
};

// 0–255 are bytes, 256 ends a text.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// `model` are the contents of a .model file, `origin` is its name for messages. Throws ConfigError
// when it is none or has no end-of-sentence piece.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model,
                                                        const std::string& origin);

// Trains a BPE model with byte fallback on `sentences` (UTF-8, without line ends) and returns the
// contents of its .model file: the same for the same sentences. Text is taken as it is (no
// normalisation, no added space), so that decoding gives it back. Throws ConfigError when the text
// does not yield exactly `vocabulary` pieces.
std::string train_sentencepiece(const std::vector<std::string>& sentences, int32_t vocabulary);

}  // namespace gnomon
