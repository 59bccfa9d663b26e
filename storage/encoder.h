// Documents → tokens on all cores, in the documents' order, with bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "storage/tokenizer.h"

namespace gnomon {

class ParallelEncoder {
 public:
  // `sink(stream, tokens)` gets the tokens in the order in which the texts were added.
  using Sink = std::function<void(int stream, std::span<const uint32_t> tokens)>;
  ParallelEncoder(const Tokenizer& tokenizer, Sink sink);

  // Adds a document's text and the end-of-text token. `owner` keeps the text alive until it is
  // encoded. Long texts are encoded in pieces of at most 1 MiB that end with a line where possible.
  void add(int stream, std::string_view text, std::shared_ptr<const void> owner);
  // Encodes and delivers all that was added.
  void flush();

 private:
  struct Piece {
    int stream = 0;
    std::string_view text;
    std::shared_ptr<const void> owner;
    bool last = false;  // of its document
    std::vector<uint32_t> tokens;
  };
  void encode_pieces();

  const Tokenizer& tokenizer_;
  Sink sink_;
  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
};

}  // namespace gnomon
