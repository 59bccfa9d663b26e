#include "trainer/engine/synthetic_data.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <string>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/philox.h"
#include "storage/dataset_description.h"
#include "storage/token_shards.h"

namespace gnomon {
namespace {

ShardDescription write_shard(const std::filesystem::path& directory, const std::string& file,
                             bool heldout, const std::vector<uint32_t>& tokens, bool wide) {
  ShardWriter writer(directory / file, wide);
  writer.append(tokens);
  writer.finish();
  std::string content = read_file(directory / file);
  Hash128 hash;
  hash.update(content.data(), content.size());
  return {.file = file,
          .heldout = heldout,
          .tokens = static_cast<int64_t>(tokens.size()),
          .xxh3_128 = hash.hex()};
}

std::vector<uint32_t> random_sequence(uint64_t key, int32_t vocabulary, int64_t count) {
  std::vector<uint32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = philox(key, 0, i)[0] % static_cast<uint32_t>(vocabulary);
  }
  return tokens;
}

}  // namespace

void write_token_dataset(const std::filesystem::path& directory,
                         const std::vector<std::vector<uint32_t>>& train,
                         const std::vector<uint32_t>& heldout, int32_t vocabulary) {
  std::filesystem::create_directories(directory);
  bool wide = vocabulary > 65536;
  DatasetDescription description;
  description.info.tokenizer = "bytes";
  description.info.vocabulary = vocabulary;
  for (size_t i = 0; i < train.size(); ++i) {
    description.shards.push_back(
        write_shard(directory, fmt::format("train_{:06}.bin", i), false, train[i], wide));
    description.info.train_tokens += description.shards.back().tokens;
  }
  description.shards.push_back(write_shard(directory, "heldout_000000.bin", true, heldout, wide));
  description.info.heldout_tokens = description.shards.back().tokens;
  description.info.input_bytes = description.info.train_tokens + description.info.heldout_tokens;
  description.info.content_hash = content_hash(description.shards);
  write_file_atomically(directory / kDatasetFile, to_json(description));
}

SyntheticData::SyntheticData(const std::filesystem::path& parent, int32_t vocabulary,
                             int64_t tokens) {
  std::string name = parent / "gnomon-synthetic-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw SystemError("create directory", name, errno);
  directory_ = name;
  write_token_dataset(directory_, {random_sequence(1, vocabulary, tokens)},
                      random_sequence(2, vocabulary, tokens), vocabulary);
}

SyntheticData::~SyntheticData() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace gnomon
