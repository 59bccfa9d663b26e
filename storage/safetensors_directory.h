// The weights of a model directory as Hugging Face lays it out: model.safetensors, or shards with
// model.safetensors.index.json that says which tensor is in which. All headers are checked, and the
// index against them, before any tensor is touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/safetensors.h"

namespace gnomon {

class SafetensorsDirectory {
 public:
  struct Tensor {
    const TensorView* view = nullptr;
    std::string file;  // path of the file it is in
  };

  // Where both are there, model.safetensors is taken and the index is not read, as transformers
  // does. Throws SystemError when `directory` is none, FormatError when it has neither, or naming
  // the file: a header that lies; an index that names a file which is not there or lies elsewhere,
  // or a tensor that its file does not have; a tensor that the index does not name, or that is in
  // two files.
  explicit SafetensorsDirectory(const std::filesystem::path& directory);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::string>& files() const { return names_; }           // within the directory
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }  // by name
  const Tensor* find(const std::string& name) const;                         // nullptr when absent
  int64_t bytes() const;                                                     // of all tensors

 private:
  void open_shards(const std::filesystem::path& index);
  void add_tensors(const SafetensorsFile& file, const std::string& path);

  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

// Writes `tensors` into `directory`, which must exist, as model.safetensors, or, when their bytes
// are more than `shard_bytes_max`, as model-00001-of-0000N.safetensors and so on with an index: in
// the order given, no file with more bytes of tensors than that unless one tensor alone has more.
// Returns the names of the files written. Throws SystemError.
std::vector<std::string> write_safetensors_directory(const std::filesystem::path& directory,
                                                     std::span<const TensorView> tensors,
                                                     int64_t shard_bytes_max);

}  // namespace gnomon
