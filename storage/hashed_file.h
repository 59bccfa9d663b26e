// Files whose XXH3-128 is computed in the same pass in which their bytes are written or read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/hash.h"

namespace gnomon {

struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3_128;  // 32 hexadecimal digits
};

// Reads the whole file once. Throws SystemError.
FileDigest digest_file(const std::filesystem::path& path);

// A new file written from front to back. Every function throws SystemError naming the file; what
// was written so far then stays on disk for the caller to remove.
class HashedFileWriter {
 public:
  // Creates `path`, or empties it.
  explicit HashedFileWriter(const std::filesystem::path& path);

  // Asks the file system for this many bytes at once, so that a full disk is noticed before the
  // first is written.
  void reserve(int64_t bytes);
  void append(const void* data, size_t bytes);
  // Writes what is buffered, fsyncs and closes.
  FileDigest finish();

 private:
  void flush();
  void write_hashed(const char* data, size_t bytes);

  std::filesystem::path path_;
  FileDescriptor fd_;
  Hash128 hash_;
  std::vector<char> buffer_;
  int64_t bytes_ = 0;
};

}  // namespace gnomon
