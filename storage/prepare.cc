#include "storage/prepare.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "storage/documents.h"
#include "storage/encoder.h"
#include "storage/shard_series.h"
#include "storage/staging_directory.h"
#include "storage/tokenizer.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTrainingBytesMax = int64_t{16}
                                      << 20;  // of text that SentencePiece is trained on
constexpr size_t kSentenceBytes = 4096;
constexpr std::string_view kTrainPrefix = "sentencepiece:";
constexpr char kTokenizerAccepted[] =
    "bytes, sentencepiece:VOCABULARY or the path of a .model file";

// What the first pass over the input learns.
struct Census {
  int64_t documents = 0;
  int64_t bytes = 0;
  int64_t heldout_documents = 0;
  int64_t lowest = -1, highest = -1;  // documents (numbered from 0) with the extreme keys
  uint64_t lowest_key = std::numeric_limits<uint64_t>::max(), highest_key = 0;
  int64_t first_bytes = 0;  // of document 0
};

bool key_below(uint64_t key, double share) { return static_cast<double>(key) < share * 0x1p64; }

// Which part of each document is held out.
class Split {
 public:
  Split(const Census& census, double share) : share_(share) {
    if (census.documents == 1) {
      single_bytes_ = census.first_bytes;
    } else if (census.heldout_documents == 0) {
      moved_ = census.lowest;
    } else if (census.heldout_documents == census.documents) {
      moved_ = census.highest;
    }
  }

  // The length of the front that is trained on; the rest is held out.
  size_t train_bytes(const Document& document, int64_t number) const {
    size_t size = document.text.size();
    if (single_bytes_ > 0) {
      auto wanted = static_cast<size_t>(std::floor((1 - share_) * static_cast<double>(size)));
      return cut_before(document.text, std::clamp<size_t>(wanted, 1, size - 1));
    }
    bool heldout = key_below(document.key, share_) != (number == moved_);
    return heldout ? 0 : size;
  }

 private:
  double share_;
  int64_t moved_ = -1;         // the one document that changes sides, so that neither is empty
  int64_t single_bytes_ = -1;  // size of the only document
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const std::function<void(int64_t, int64_t)>& progress)
      : options_(options), progress_(progress) {}

  DatasetInfo run() {
    check_options();
    files_ = find_input_files(options_.inputs, options_.extensions);
    for (const InputFile& file : files_) input_bytes_ += file.bytes;
    passes_ = trained_vocabulary_ > 0 ? 3 : 2;
    check_output();
    count_documents();
    make_tokenizer();
    std::error_code error;
    fs::create_directories(options_.output, error);
    if (error) throw SystemError("create", options_.output.string(), error.value());
    remove_abandoned_staging(options_.output);
    auto staging = writing([&] { return StagingDirectory(options_.output, "dataset"); });
    DatasetDescription description = write_shards(staging.path());
    check_sequences(description.info);
    writing([&] { publish(staging.path(), description); });
    return description.info;
  }

 private:
  // Errors of `work` name the directory that the user named, not the temporary files in it.
  template <typename Work>
  std::invoke_result_t<Work> writing(Work work) const {
    try {
      return work();
    } catch (const SystemError& error) {
      throw SystemError("write", options_.output.string(), error.error_number());
    }
  }

  void check_options() {
    if (!(options_.heldout_share > 0 && options_.heldout_share < 1))
      throw ConfigError("", 0, "--heldout", fmt::format("{}", options_.heldout_share),
                        "a number between 0 and 1, both excluded");
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (options_.shard_tokens < 1 || options_.shard_tokens > kMost)
      throw ConfigError("", 0, "--shard-tokens", fmt::format("{}", options_.shard_tokens),
                        fmt::format("1 to {}", kMost));
    if (options_.sequence_tokens < 0 || options_.sequence_tokens >= kMost)
      throw ConfigError("", 0, "--sequence", fmt::format("{}", options_.sequence_tokens),
                        fmt::format("1 to {}, or 0 not to ask", kMost - 1));
    if (options_.output.empty()) throw ConfigError("", 0, "--out", "", "a directory");
    const std::string& tokenizer = options_.tokenizer;
    if (tokenizer.starts_with(kTrainPrefix)) {
      const char* end = tokenizer.data() + tokenizer.size();
      auto [rest, error] =
          std::from_chars(tokenizer.data() + kTrainPrefix.size(), end, trained_vocabulary_);
      if (error != std::errc() || rest != end || trained_vocabulary_ < 260 ||
          trained_vocabulary_ > 1'000'000)
        throw ConfigError("", 0, "--tokenizer", tokenizer,
                          "sentencepiece:VOCABULARY with 260 to 1000000");
    } else if (tokenizer == "bytes") {
      tokenizer_ = make_byte_tokenizer();
    } else {
      if (!tokenizer.ends_with(".model") || !fs::is_regular_file(tokenizer))
        throw ConfigError("", 0, "--tokenizer", tokenizer, kTokenizerAccepted);
      tokenizer_ = make_sentencepiece_tokenizer(read_file(tokenizer), tokenizer);
    }
  }

  void check_output() const {
    if (fs::exists(options_.output) && !fs::is_directory(options_.output))
      throw ConfigError("", 0, "--out", options_.output.string(), "a directory");
    for (const fs::path& path : list_directory(options_.output)) {
      std::string name = path.filename().string();
      if (!is_dataset_file(name) && !name.starts_with(".staging-"))
        throw ConfigError("", 0, "--out", options_.output.string(),
                          fmt::format("an empty directory or a dataset; \"{}\" is in it", name));
    }
  }

  // Visits every document as (document, number), reporting progress.
  template <typename Visit>
  void pass(Visit visit) {
    int64_t number = 0;
    int64_t file_start = done_;
    for (const InputFile& file : files_) {
      int64_t seen = 0;
      visit_documents(file, options_.jsonl_field, [&](const Document& document) {
        visit(document, number++);
        seen = std::min(file.bytes, seen + static_cast<int64_t>(document.text.size()));
        report(file_start + seen);
      });
      file_start += file.bytes;
      report(file_start);
    }
    done_ = file_start;
  }

  void report(int64_t done) const {
    if (progress_) progress_(done, input_bytes_ * passes_);
  }

  void count_documents() {
    pass([&](const Document& document, int64_t number) {
      auto bytes = static_cast<int64_t>(document.text.size());
      if (census_.documents++ == 0) census_.first_bytes = bytes;
      census_.bytes += bytes;
      if (key_below(document.key, options_.heldout_share)) ++census_.heldout_documents;
      if (census_.lowest < 0 || document.key < census_.lowest_key) {
        census_.lowest = number;
        census_.lowest_key = document.key;
      }
      if (census_.highest < 0 || document.key > census_.highest_key) {
        census_.highest = number;
        census_.highest_key = document.key;
      }
    });
    if (census_.documents == 0)
      throw ConfigError("", 0, "--input", options_.inputs.front().string(),
                        "some text; it is empty");
    if (census_.bytes < 2)
      throw ConfigError("", 0, "--input", options_.inputs.front().string(),
                        "at least two bytes of text: one to train on, one to hold out");
  }

  void make_tokenizer() {
    if (tokenizer_) return;
    tokenizer_ = make_sentencepiece_tokenizer(
        train_sentencepiece(sample_sentences(), trained_vocabulary_), options_.tokenizer);
  }

  // Lines of the train split: all of them, or those that a hash of their text and place chooses.
  std::vector<std::string> sample_sentences() {
    std::vector<std::string> sentences;
    const Split split(census_, options_.heldout_share);
    double share = static_cast<double>(kTrainingBytesMax) / static_cast<double>(census_.bytes);
    pass([&](const Document& document, int64_t number) {
      std::string_view rest = document.text.substr(0, split.train_bytes(document, number));
      for (uint64_t line = 0; !rest.empty(); ++line) {
        // A tab marks supervision data to SentencePiece, which drops such sentences.
        size_t end = std::min(rest.find_first_of("\n\t"), rest.size());
        std::string_view sentence = rest.substr(0, cut_before(rest.substr(0, end), kSentenceBytes));
        rest.remove_prefix(
            std::min(rest.size(), std::max<size_t>(sentence.size() + (sentence.size() == end), 1)));
        uint64_t choice = hash64(sentence.data(), sentence.size(), document.key + line);
        if (!sentence.empty() && (share >= 1 || key_below(choice, share)))
          sentences.emplace_back(sentence);
      }
    });
    return sentences;
  }

  DatasetDescription write_shards(const fs::path& directory) {
    const bool wide = tokenizer_->vocabulary() > 65536;
    ShardSeries series[2] = {{directory, false, wide, options_.shard_tokens},
                             {directory, true, wide, options_.shard_tokens}};
    ParallelEncoder encoder(*tokenizer_, [&](int stream, std::span<const uint32_t> tokens) {
      writing([&] { series[stream].append(tokens); });
    });
    DatasetDescription description;
    DatasetInfo& info = description.info;
    const Split split(census_, options_.heldout_share);
    const bool needs_utf8 = !tokenizer_->model().empty();
    pass([&](const Document& document, int64_t number) {
      size_t cut = split.train_bytes(document, number);
      encoder.add(0, document.text.substr(0, cut), document.owner);
      encoder.add(1, document.text.substr(cut), document.owner);
      info.heldout_bytes += static_cast<int64_t>(document.text.size() - cut);
      if (needs_utf8 && !is_valid_utf8(document.text)) ++info.invalid_utf8_documents;
    });
    encoder.flush();
    for (ShardSeries& one : series)
      for (const ShardDescription& shard : writing([&] { return one.finish(); }))
        description.shards.push_back(shard);
    info.tokenizer = tokenizer_->name();
    info.vocabulary = tokenizer_->vocabulary();
    if (!tokenizer_->model().empty()) info.tokenizer_model = kTokenizerModelFile;
    for (const ShardDescription& shard : description.shards)
      (shard.heldout ? info.heldout_tokens : info.train_tokens) += shard.tokens;
    info.input_bytes = census_.bytes;
    info.documents = census_.documents;
    info.content_hash = content_hash(description.shards);
    return description;
  }

  // A run needs a whole sequence, and the token behind it, of each split.
  void check_sequences(const DatasetInfo& info) const {
    const int64_t needed = options_.sequence_tokens + 1;
    if (options_.sequence_tokens == 0 || std::min(info.train_tokens, info.heldout_tokens) >= needed)
      return;
    throw ConfigError(
        "", 0, "--input", options_.inputs.front().string(),
        fmt::format("more text: it gives {} tokens to train on and {} held out, and "
                    "sequences of {} tokens (--sequence) need at least {} of each",
                    info.train_tokens, info.heldout_tokens, options_.sequence_tokens, needed));
  }

  // From the removal of an old dataset.json to the writing of the new one, the directory is no
  // dataset.
  void publish(const fs::path& staged, const DatasetDescription& description) const {
    const fs::path& output = options_.output;
    if (!tokenizer_->model().empty())
      write_file_atomically(staged / kTokenizerModelFile, tokenizer_->model());
    if (::unlink((output / kDatasetFile).c_str()) != 0 && errno != ENOENT)
      throw SystemError("replace", (output / kDatasetFile).string(), errno);
    sync_path(output);
    for (const fs::path& old : list_directory(output))
      if (is_dataset_file(old.filename().string()) && ::unlink(old.c_str()) != 0)
        throw SystemError("remove", old.string(), errno);
    for (const fs::path& file : list_directory(staged))
      if (::rename(file.c_str(), (output / file.filename()).c_str()) != 0)
        throw SystemError("rename", file.string(), errno);
    sync_path(output);
    write_file_atomically(output / kDatasetFile, to_json(description));
  }

  const PrepareOptions& options_;
  const std::function<void(int64_t, int64_t)>& progress_;
  int32_t trained_vocabulary_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<InputFile> files_;
  int64_t input_bytes_ = 0;
  int64_t passes_ = 2;
  int64_t done_ = 0;
  Census census_;
};

}  // namespace

DatasetInfo prepare_dataset(const PrepareOptions& options,
                            const std::function<void(int64_t, int64_t)>& progress) {
  return Preparation(options, progress).run();
}

}  // namespace gnomon
