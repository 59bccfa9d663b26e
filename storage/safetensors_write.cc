#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json.hpp>
#include <cstring>
#include <set>
#include <string_view>

#include "base/errors.h"
#include "storage/hashed_file.h"
#include "storage/safetensors.h"

namespace gnomon {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

struct Dtype {
  std::string_view tag;
  int64_t bytes;
};

// In the order of the reference implementation, which writes the last ones first: larger elements
// before smaller ones keep every tensor aligned without a hole.
constexpr std::array<Dtype, 15> kDtypes = {{{"BOOL", 1},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"F8_E5M2", 1},
                                            {"F8_E4M3", 1},
                                            {"I16", 2},
                                            {"U16", 2},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"I32", 4},
                                            {"U32", 4},
                                            {"F32", 4},
                                            {"F64", 8},
                                            {"I64", 8},
                                            {"U64", 8}}};

size_t dtype_rank(const std::string& dtype) {
  size_t rank = 0;
  while (rank < kDtypes.size() && kDtypes[rank].tag != dtype) ++rank;
  if (rank < kDtypes.size()) return rank;
  std::string accepted;
  for (const Dtype& known : kDtypes)
    accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", known.tag);
  throw Error(fmt::format("unknown dtype \"{}\"; expected one of {}", dtype, accepted));
}

std::vector<const TensorView*> file_order(std::span<const TensorView> tensors) {
  std::set<std::string_view> names = {"__metadata__"};
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw Error(fmt::format("tensor name \"{}\" is reserved or used twice", tensor.name));
    if (tensor.bytes() > 0 && tensor.data == nullptr)
      throw Error(fmt::format("tensor \"{}\" has no data", tensor.name));
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    size_t rank_a = dtype_rank(a->dtype), rank_b = dtype_rank(b->dtype);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });
  return order;
}

std::string quoted(const std::string& text) {
  return boost::json::serialize(boost::json::string(text));
}

// The JSON header, padded with spaces so that the data behind it starts at a multiple of 8.
std::string header_text(const std::vector<const TensorView*>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      header += fmt::format("{}:{},", quoted(key), quoted(value));
    header.back() = '}';
    header += ',';
  }
  int64_t offset = 0;
  for (const TensorView* tensor : order) {
    int64_t end = offset + tensor->bytes();
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                          quoted(tensor->name), tensor->dtype, fmt::join(tensor->shape, ","),
                          offset, end);
    offset = end;
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

}  // namespace

int64_t dtype_bytes(const std::string& dtype) { return kDtypes[dtype_rank(dtype)].bytes; }

int64_t TensorView::bytes() const {
  int64_t bytes = dtype_bytes(dtype);
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes))
      throw Error(
          fmt::format("tensor \"{}\" has the shape [{}]; expected extents of 0 or more "
                      "and at most 2^63 bytes",
                      name, fmt::join(shape, ", ")));
  }
  return bytes;
}

std::string write_safetensors(const std::filesystem::path& path,
                              std::span<const TensorView> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorView*> order = file_order(tensors);
  std::string header = header_text(order, metadata);
  uint64_t header_bytes = header.size();
  int64_t total = static_cast<int64_t>(sizeof header_bytes + header.size());
  for (const TensorView* tensor : order) total += tensor->bytes();
  HashedFileWriter file(path);
  file.reserve(total);
  file.append(&header_bytes, sizeof header_bytes);
  file.append(header.data(), header.size());
  for (const TensorView* tensor : order)
    file.append(tensor->data, static_cast<size_t>(tensor->bytes()));
  return file.finish().xxh3_128;
}

}  // namespace gnomon
