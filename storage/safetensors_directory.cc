#include "storage/safetensors_directory.h"

#include <fmt/format.h>

#include <cerrno>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/files.h"
#include "storage/hashed_file.h"
#include "storage/strict_json.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};  // transformers wants it

// weight_map of an index: file by tensor.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const JsonSource source{path.string(), 0};
  const json::value root =
      parse_strict_json(read_file(path), source, "an object with a \"weight_map\"");
  if (!root.is_object())
    throw FormatError(source.file, 0, "no JSON object", "an object with a \"weight_map\"");
  const json::value& map = json_member(root.get_object(), "weight_map", source);
  if (!map.is_object() || map.get_object().empty())
    throw FormatError(source.file, 0, fmt::format("\"weight_map\": {}", json::serialize(map)),
                      "an object of tensors and their files");
  std::map<std::string, std::string> files;
  for (const json::key_value_pair& member : map.get_object()) {
    const std::string tensor(member.key());
    const std::string found =
        fmt::format("tensor \"{}\" in {}", tensor, json::serialize(member.value()).substr(0, 200));
    if (!member.value().is_string())
      throw FormatError(source.file, 0, found, "the name of a safetensors file");
    const std::string file(member.value().get_string());
    if (file.empty() || file == ".." || fs::path(file).filename() != file ||
        !file.ends_with(".safetensors"))
      throw FormatError(source.file, 0, found, "a safetensors file in the index's own directory");
    if (!is_file_at(path.parent_path() / file))
      throw FormatError(source.file, 0, found, "a file that is there");
    files.emplace(tensor, file);
  }
  return files;
}

std::string index_text(const std::vector<std::pair<std::string, std::string>>& file_by_tensor,
                       int64_t bytes) {
  json::object map;
  for (const auto& [tensor, file] : file_by_tensor) map[tensor] = file;
  return json::serialize(
             json::object{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}}) +
         "\n";
}

}  // namespace

SafetensorsDirectory::SafetensorsDirectory(const fs::path& directory) : path_(directory) {
  if (!fs::is_directory(directory))
    throw SystemError("read model", directory.string(), fs::exists(directory) ? ENOTDIR : ENOENT);
  if (fs::exists(directory / kWhole)) {
    names_.push_back(kWhole);
    files_.push_back(std::make_unique<SafetensorsFile>(directory / kWhole));
    add_tensors(*files_.back(), (directory / kWhole).string());
  } else if (fs::exists(directory / kIndex)) {
    open_shards(directory / kIndex);
  } else {
    throw FormatError(directory.string(), 0, "a directory without safetensors weights",
                      fmt::format("{} or {}", kWhole, kIndex));
  }
}

void SafetensorsDirectory::open_shards(const fs::path& index) {
  const std::map<std::string, std::string> file_by_tensor = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_by_tensor) names.insert(file);
  names_.assign(names.begin(), names.end());
  for (const std::string& name : names_) {
    files_.push_back(std::make_unique<SafetensorsFile>(path_ / name));
    add_tensors(*files_.back(), (path_ / name).string());
  }
  for (const auto& [tensor, file] : file_by_tensor) {
    const Tensor* found = find(tensor);
    if (found == nullptr || found->file != (path_ / file).string())
      throw FormatError(index.string(), 0, fmt::format("tensor \"{}\" in \"{}\"", tensor, file),
                        found == nullptr ? "a tensor that its file has"
                                         : fmt::format("{}, where it is", found->file));
  }
  for (const auto& [name, tensor] : tensors_) {
    if (!file_by_tensor.contains(name))
      throw FormatError(tensor.file, 0, fmt::format("tensor \"{}\"", name),
                        fmt::format("only tensors that {} names", kIndex));
  }
}

void SafetensorsDirectory::add_tensors(const SafetensorsFile& file, const std::string& path) {
  for (const TensorView& view : file.tensors()) {
    auto [place, added] = tensors_.emplace(view.name, Tensor{&view, path});
    if (!added)
      throw FormatError(
          path, 0, fmt::format("tensor \"{}\"", view.name),
          fmt::format("no tensor of {}, which has one of this name", place->second.file));
  }
}

const SafetensorsDirectory::Tensor* SafetensorsDirectory::find(const std::string& name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

int64_t SafetensorsDirectory::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.view->bytes();
  return bytes;
}

std::vector<std::string> write_safetensors_directory(const fs::path& directory,
                                                     std::span<const TensorView> tensors,
                                                     int64_t shard_bytes_max) {
  std::vector<std::vector<TensorView>> shards(1);
  int64_t total = 0, in_shard = 0;
  for (const TensorView& tensor : tensors) {
    const int64_t bytes = tensor.bytes();
    if (in_shard + bytes > shard_bytes_max && !shards.back().empty()) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
  }
  if (shards.size() == 1) {
    write_safetensors(directory / kWhole, tensors, kMetadata);
    return {kWhole};
  }
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::string>> file_by_tensor;
  for (size_t i = 0; i < shards.size(); ++i) {
    names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    write_safetensors(directory / names.back(), shards[i], kMetadata);
    for (const TensorView& tensor : shards[i])
      file_by_tensor.emplace_back(tensor.name, names.back());
  }
  const std::string index = index_text(file_by_tensor, total);
  HashedFileWriter file(directory / kIndex);
  file.append(index.data(), index.size());
  file.finish();
  names.push_back(kIndex);
  return names;
}

}  // namespace gnomon
