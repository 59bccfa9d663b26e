// A whole file mapped read-only. An empty file is a mapping of no bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace gnomon {

class MappedFile {
 public:
  // Throws SystemError, also when `path` is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Page aligned; nullptr when size() is 0. Valid while this object lives.
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void unmap();

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace gnomon
