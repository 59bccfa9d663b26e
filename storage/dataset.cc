#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "storage/dataset_description.h"
#include "storage/hashed_file.h"
#include "storage/strict_json.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr char kDatasetFormat[] = "gnomon-dataset";
constexpr int64_t kDatasetVersion = 1;

void check_name(const char* key, const std::string& name, const JsonSource& source) {
  if (name.empty() || name.find('/') != std::string::npos)
    throw FormatError(source.file, source.offset_bytes, fmt::format("{} \"{}\"", key, name),
                      "a file name without folders");
}

ShardDescription parse_shard(const json::value& value, const JsonSource& source) {
  if (!value.is_object())
    throw FormatError(source.file, source.offset_bytes, "a shard that is no object", "an object");
  const json::object& object = value.get_object();
  ShardDescription shard;
  shard.file = json_string(object, "file", source);
  check_name("file", shard.file, source);
  std::string split = json_string(object, "split", source);
  if (split != "train" && split != "heldout")
    throw FormatError(source.file, source.offset_bytes, fmt::format("the split \"{}\"", split),
                      "\"train\" or \"heldout\"");
  shard.heldout = split == "heldout";
  shard.tokens = json_count(object, "tokens", source);
  shard.xxh3_128 = json_string(object, "xxh3_128", source);
  return shard;
}

void check_equal(const JsonSource& source, const char* what, int64_t found, int64_t expected) {
  if (found != expected)
    throw FormatError(source.file, source.offset_bytes, fmt::format("{} = {}", what, found),
                      fmt::format("{}, as its shards have", expected));
}

void check_sums(const DatasetDescription& description, const JsonSource& source) {
  int64_t tokens[2] = {0, 0};
  for (const ShardDescription& shard : description.shards) {
    int64_t& sum = tokens[shard.heldout ? 1 : 0];
    if (__builtin_add_overflow(sum, shard.tokens, &sum))
      throw FormatError(source.file, source.offset_bytes, "token counts past 2^63",
                        "the shards' real counts");
  }
  check_equal(source, "train_tokens", description.info.train_tokens, tokens[0]);
  check_equal(source, "heldout_tokens", description.info.heldout_tokens, tokens[1]);
  std::string hash = content_hash(description.shards);
  if (description.info.content_hash != hash)
    throw FormatError(source.file, source.offset_bytes,
                      fmt::format("content_hash {}", description.info.content_hash),
                      fmt::format("{}, the hash over its shards", hash));
}

// Opens the shards of one split and compares them with their descriptions.
TokenShards open_split(const std::filesystem::path& directory, bool heldout,
                       const DatasetDescription& description, DatasetCheck check) {
  std::vector<std::filesystem::path> paths;
  for (const ShardDescription& shard : description.shards) {
    if (shard.heldout != heldout) continue;
    const std::filesystem::path path = directory / shard.file;
    paths.push_back(path);
    int64_t found = TokenShards({path}).tokens();
    if (found != shard.tokens)
      throw FormatError(path.string(), 8, fmt::format("a count of {} tokens", found),
                        fmt::format("{}, as {} says", shard.tokens, kDatasetFile));
    if (check != DatasetCheck::kContents) continue;
    std::string hash = digest_file(path).xxh3_128;
    if (hash != shard.xxh3_128)
      throw FormatError(path.string(), 0, fmt::format("contents with the hash {}", hash),
                        fmt::format("{}, as {} says", shard.xxh3_128, kDatasetFile));
  }
  if (paths.empty())
    throw FormatError((directory / kDatasetFile).string(), 0,
                      fmt::format("no {} shards", heldout ? "held-out" : "train"),
                      "at least one of each split");
  TokenShards shards(paths);
  shards.set_vocabulary(description.info.vocabulary);
  return shards;
}

}  // namespace

std::string content_hash(const std::vector<ShardDescription>& shards) {
  Hash128 hash;
  for (const ShardDescription& shard : shards) {
    std::string line = fmt::format("{} {} {}\n", shard.heldout ? "heldout" : "train", shard.tokens,
                                   shard.xxh3_128);
    hash.update(line.data(), line.size());
  }
  return hash.hex();
}

std::string to_json(const DatasetDescription& description) {
  const DatasetInfo& info = description.info;
  std::string text = fmt::format("{{\n  \"format\": \"{}\",\n  \"version\": {},\n", kDatasetFormat,
                                 kDatasetVersion);
  auto number = [&](const char* key, int64_t value) {
    text += fmt::format("  \"{}\": {},\n", key, value);
  };
  auto string = [&](const char* key, const std::string& value) {
    text += fmt::format("  \"{}\": {},\n", key, json::serialize(json::string(value)));
  };
  string("tokenizer", info.tokenizer);
  string("tokenizer_model", info.tokenizer_model);
  number("vocabulary", info.vocabulary);
  number("train_tokens", info.train_tokens);
  number("heldout_tokens", info.heldout_tokens);
  number("input_bytes", info.input_bytes);
  number("heldout_bytes", info.heldout_bytes);
  number("documents", info.documents);
  number("invalid_utf8_documents", info.invalid_utf8_documents);
  string("content_hash", info.content_hash);
  text += "  \"shards\": [";
  const char* separator = "\n";
  for (const ShardDescription& shard : description.shards) {
    text += fmt::format(
        "{}    {{\"file\": {}, \"split\": \"{}\", \"tokens\": {}, \"xxh3_128\": \"{}\"}}",
        separator, json::serialize(json::string(shard.file)), shard.heldout ? "heldout" : "train",
        shard.tokens, shard.xxh3_128);
    separator = ",\n";
  }
  return text + "\n  ]\n}\n";
}

DatasetDescription read_dataset_description(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kDatasetFile;
  const std::string text = read_file(path);
  const JsonSource source{path.string(), 0};
  json::value value = parse_strict_json(text, source, "the description of a dataset");
  if (!value.is_object()) throw FormatError(source.file, 0, "no JSON object", "an object");
  const json::object& object = value.get_object();
  std::string format = json_string(object, "format", source);
  if (format != kDatasetFormat)
    throw FormatError(source.file, 0, fmt::format("format \"{}\"", format),
                      fmt::format("\"{}\"", kDatasetFormat));
  int64_t version = json_count(object, "version", source);
  if (version != kDatasetVersion)
    throw FormatError(source.file, 0, fmt::format("version {}", version),
                      fmt::format("{}", kDatasetVersion));
  DatasetDescription description;
  DatasetInfo& info = description.info;
  info.tokenizer = json_string(object, "tokenizer", source);
  info.tokenizer_model = json_string(object, "tokenizer_model", source);
  if (!info.tokenizer_model.empty()) check_name("tokenizer_model", info.tokenizer_model, source);
  int64_t vocabulary = json_count(object, "vocabulary", source);
  if (vocabulary < 1 || vocabulary > std::numeric_limits<int32_t>::max())
    throw FormatError(source.file, 0, fmt::format("vocabulary = {}", vocabulary),
                      "1 to 2147483647");
  info.vocabulary = static_cast<int32_t>(vocabulary);
  info.train_tokens = json_count(object, "train_tokens", source);
  info.heldout_tokens = json_count(object, "heldout_tokens", source);
  info.input_bytes = json_count(object, "input_bytes", source);
  info.heldout_bytes = json_count(object, "heldout_bytes", source);
  info.documents = json_count(object, "documents", source);
  info.invalid_utf8_documents = json_count(object, "invalid_utf8_documents", source);
  info.content_hash = json_string(object, "content_hash", source);
  for (const json::value& shard : json_array(object, "shards", source))
    description.shards.push_back(parse_shard(shard, source));
  check_sums(description, source);
  return description;
}

Dataset Dataset::open(const std::filesystem::path& directory, DatasetCheck check) {
  DatasetDescription description = read_dataset_description(directory);
  const std::string& model = description.info.tokenizer_model;
  if (!model.empty() && !is_file_at(directory / model))
    throw SystemError("open", (directory / model).string(), ENOENT);
  return {description.info, open_split(directory, false, description, check),
          open_split(directory, true, description, check)};
}

}  // namespace gnomon
