// `gnomon data prepare`: text or JSONL files → token shards with a held-out split.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "storage/token_shards.h"

namespace gnomon {

struct PrepareOptions {
  std::vector<std::filesystem::path>
      inputs;  // files or directories (searched recursively, in sorted order)
  std::filesystem::path output;
  std::string tokenizer = "bytes";   // "bytes", "sentencepiece:VOCAB", or a .model file
  std::string jsonl_field = "text";  // of .jsonl files
  double heldout_share = 0.05;  // of the documents, chosen by a hash of path and document number
  int64_t shard_tokens = 100'000'000;  // a shard's size at most; 1 to 2^31 - 1
  int64_t sequence_tokens = 0;         // what a run's sequences will have; 0 = not asked
  std::vector<std::string> extensions = {".txt", ".rst", ".md", ".jsonl",
                                         ".py"};  // inside directories
};

// Writes the dataset directory; dataset.json last. The same input gives the same bytes, wherever it
// lies. An earlier dataset in `output` is replaced, and stays as it is when this one fails; a
// directory with anything else in it is refused. Each document is followed by the end-of-text token
// (bytes: 256, vocabulary 257; SentencePiece: </s>). Both splits get at least one document; of a
// single document the held-out share is its end. SentencePiece is trained on the train split alone.
// `progress` gets (bytes done, bytes in all), where each pass over the input counts. Throws
// ConfigError for options and inputs that are missing or empty, and for a split without one whole
// sequence of `sequence_tokens`; FormatError for bad JSONL (file, line, offset); SystemError, which
// for output names the directory. Messages call the options as `gnomon data prepare` does.
DatasetInfo prepare_dataset(const PrepareOptions& options,
                            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace gnomon
