#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "base/errors.h"
#include "storage/mapped_file.h"
#include "storage/safetensors.h"
#include "storage/strict_json.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;  // as in the reference implementation

struct Entry {
  TensorView view;
  int64_t begin = 0;  // in the data, behind the header
  int64_t end = 0;
};

class HeaderReader {
 public:
  explicit HeaderReader(const MappedFile& file) : file_(file), name_(file.path().string()) {}

  // Fills tensors (in file order, data pointers set) and metadata.
  void read(std::vector<TensorView>& tensors, std::map<std::string, std::string>& metadata) {
    read_length();
    std::string_view text(reinterpret_cast<const char*>(file_.data()) + kLengthBytes,
                          static_cast<size_t>(header_bytes_));
    if (text[0] != '{') fail(kLengthBytes, fmt::format("byte 0x{:02x}", text[0]), "'{'");
    size_t last = text.find_last_not_of(' ');
    json::value value =
        parse_strict_json(text.substr(0, last + 1), {name_, kLengthBytes}, "a safetensors header");
    if (!value.is_object()) fail(kLengthBytes, "no JSON object", "a safetensors header");
    std::vector<Entry> entries;
    for (const json::key_value_pair& member : value.get_object()) {
      std::string key(member.key().data(), member.key().size());
      if (key == "__metadata__")
        read_metadata(member.value(), metadata);
      else
        entries.push_back(read_entry(key, member.value()));
    }
    check_layout(entries);
    for (Entry& entry : entries) {
      entry.view.data = file_.data() + data_start() + entry.begin;
      tensors.push_back(std::move(entry.view));
    }
  }

 private:
  int64_t data_start() const { return kLengthBytes + header_bytes_; }
  int64_t data_bytes() const { return file_.size() - data_start(); }

  [[noreturn]] void fail(int64_t offset, const std::string& found,
                         const std::string& expected) const {
    throw FormatError(name_, offset, found, expected);
  }
  [[noreturn]] void fail_tensor(const std::string& tensor, const std::string& found,
                                const std::string& expected) const {
    fail(kLengthBytes, fmt::format("tensor \"{}\" with {}", tensor, found), expected);
  }

  void read_length() {
    if (file_.size() < kLengthBytes)
      fail(file_.size(), "the end of the file", "an 8-byte header length");
    uint64_t length;
    std::memcpy(&length, file_.data(), sizeof length);
    auto rest = static_cast<uint64_t>(file_.size() - kLengthBytes);
    uint64_t most = std::min(rest, kHeaderBytesMax);
    if (length < 2 || length > most)
      fail(0, fmt::format("a header length of {}", length),
           fmt::format("2 to {} in a file of {} bytes", most, file_.size()));
    header_bytes_ = static_cast<int64_t>(length);
  }

  void read_metadata(const json::value& value, std::map<std::string, std::string>& metadata) const {
    if (!value.is_object()) fail(kLengthBytes, "\"__metadata__\" that is no object", "an object");
    for (const json::key_value_pair& member : value.get_object()) {
      if (!member.value().is_string())
        fail(kLengthBytes,
             fmt::format("metadata \"{}\" = {}", std::string_view(member.key()),
                         json::serialize(member.value())),
             "a string");
      metadata.emplace(std::string_view(member.key()),
                       std::string_view(member.value().get_string()));
    }
  }

  Entry read_entry(const std::string& tensor, const json::value& value) const {
    if (!value.is_object()) fail_tensor(tensor, json::serialize(value), "an object");
    const json::object& object = value.get_object();
    const JsonSource source{name_, kLengthBytes};
    for (const json::key_value_pair& member : object) {
      std::string_view key(member.key());
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        fail_tensor(tensor, fmt::format("a member \"{}\"", key), "dtype, shape and data_offsets");
    }
    Entry entry;
    entry.view.name = tensor;
    entry.view.dtype = json_string(object, "dtype", source);
    int64_t element_bytes = 0;
    try {
      element_bytes = dtype_bytes(entry.view.dtype);
    } catch (const Error& error) {
      fail_tensor(tensor, error.what(), "a known dtype");
    }
    int64_t bytes = element_bytes;
    for (const json::value& extent : json_array(object, "shape", source)) {
      int64_t count = json_as_count(extent);
      if (count < 0 || __builtin_mul_overflow(bytes, count, &bytes))
        fail_tensor(tensor, fmt::format("shape {}", json::serialize(object.at("shape"))),
                    "extents of 0 or more and less than 2^63 bytes");
      entry.view.shape.push_back(count);
    }
    read_offsets(json_array(object, "data_offsets", source), element_bytes, bytes, entry);
    return entry;
  }

  void read_offsets(const json::array& offsets, int64_t element_bytes, int64_t bytes,
                    Entry& entry) const {
    const std::string& tensor = entry.view.name;
    const std::string found = fmt::format("data_offsets {}", json::serialize(offsets));
    if (offsets.size() != 2) fail_tensor(tensor, found, "[begin, end]");
    entry.begin = json_as_count(offsets[0]);
    entry.end = json_as_count(offsets[1]);
    if (entry.begin < 0 || entry.end < entry.begin || entry.end > data_bytes())
      fail_tensor(tensor, found,
                  fmt::format("0 <= begin <= end <= {}, the bytes of data", data_bytes()));
    if (entry.end - entry.begin != bytes)
      fail_tensor(tensor, found,
                  fmt::format("{} bytes, as {} {} takes", bytes, entry.view.dtype,
                              fmt::format("[{}]", fmt::join(entry.view.shape, ", "))));
    if ((data_start() + entry.begin) % element_bytes != 0)
      fail_tensor(tensor, fmt::format("data at byte {} of the file", data_start() + entry.begin),
                  fmt::format("a multiple of {}", element_bytes));
  }

  // The format allows neither overlaps nor holes.
  void check_layout(std::vector<Entry>& entries) const {
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    int64_t end = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != end)
        fail_tensor(entry.view.name, fmt::format("data from {}", entry.begin),
                    fmt::format("{}, where the tensor before it ends", end));
      end = entry.end;
    }
    if (end != data_bytes())
      fail(data_start() + end, fmt::format("{} bytes behind the last tensor", data_bytes() - end),
           "the end of the file");
  }

  const MappedFile& file_;
  std::string name_;
  int64_t header_bytes_ = 0;
};

std::string described(const std::string& dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

}  // namespace

struct SafetensorsFile::Impl {
  MappedFile file;
  std::vector<TensorView> tensors;
  std::map<std::string, std::string> metadata;
  std::unordered_map<std::string_view, const TensorView*> by_name;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : impl_(new Impl{MappedFile(path), {}, {}, {}}) {
  HeaderReader(impl_->file).read(impl_->tensors, impl_->metadata);
  for (const TensorView& tensor : impl_->tensors) impl_->by_name.emplace(tensor.name, &tensor);
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const std::vector<TensorView>& SafetensorsFile::tensors() const { return impl_->tensors; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->metadata;
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : found->second;
}

const TensorView& SafetensorsFile::require(const std::string& name, const std::string& dtype,
                                           const std::vector<int64_t>& shape) const {
  const TensorView* tensor = find(name);
  const std::string expected = described(dtype, shape);
  if (tensor == nullptr)
    throw FormatError(impl_->file.path().string(), kLengthBytes,
                      fmt::format("no tensor \"{}\"", name), expected);
  if (tensor->dtype != dtype || tensor->shape != shape)
    throw FormatError(
        impl_->file.path().string(), kLengthBytes,
        fmt::format("tensor \"{}\" as {}", name, described(tensor->dtype, tensor->shape)),
        expected);
  return *tensor;
}

}  // namespace gnomon
