// The safetensors format: 8-byte little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}}, then raw little-endian data. Reading trusts nothing: length, offsets, overlaps,
// shapes and dtypes are checked before any byte of data is touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gnomon {

// A tensor in memory, to be written. `dtype` is safetensors' tag: "F32", "BF16", "I64", "U8",
// "F64".
struct TensorView {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  int64_t bytes() const;  // product(shape) × size of dtype
};

int64_t dtype_bytes(const std::string& dtype);  // throws Error naming the accepted tags

// Writes and fsyncs `path` (no rename: the checkpoint store renames the whole directory). Returns
// the XXH3-128 of the file. `metadata` goes into "__metadata__" (transformers wants {"format":
// "pt"}). Throws SystemError.
std::string write_safetensors(const std::filesystem::path& path,
                              std::span<const TensorView> tensors,
                              const std::map<std::string, std::string>& metadata = {});

class SafetensorsFile {
 public:
  // Maps and checks the file. Throws FormatError naming file, offset, what was found and expected.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::vector<TensorView>& tensors() const;  // in file order; data points into the mapping
  const TensorView* find(const std::string& name) const;  // nullptr when absent
  // Throws FormatError unless `name` exists with this dtype and shape.
  const TensorView& require(const std::string& name, const std::string& dtype,
                            const std::vector<int64_t>& shape) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gnomon
