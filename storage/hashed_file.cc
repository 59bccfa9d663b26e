#include "storage/hashed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.h"

namespace gnomon {
namespace {

// Small enough to be hashed from the cache that the copy has just filled.
constexpr size_t kChunkBytes = size_t{256} << 10;

}  // namespace

FileDigest digest_file(const std::filesystem::path& path) {
  FileDescriptor fd = FileDescriptor::open(path, O_RDONLY);
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<char> buffer(kChunkBytes);
  Hash128 hash;
  FileDigest digest;
  while (true) {
    ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      throw SystemError("read", path.string(), errno);
    }
    if (count == 0) break;
    hash.update(buffer.data(), static_cast<size_t>(count));
    digest.bytes += count;
  }
  digest.xxh3_128 = hash.hex();
  return digest;
}

HashedFileWriter::HashedFileWriter(const std::filesystem::path& path)
    : path_(path), fd_(FileDescriptor::open(path, O_WRONLY | O_CREAT | O_TRUNC)) {
  buffer_.reserve(kChunkBytes);
}

void HashedFileWriter::reserve(int64_t bytes) {
  if (bytes <= 0) return;
  while (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return;  // the write itself will tell
    throw SystemError("write", path_.string(), errno);
  }
}

void HashedFileWriter::append(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  if (buffer_.size() + bytes <= kChunkBytes) {
    buffer_.insert(buffer_.end(), next, next + bytes);
    return;
  }
  flush();
  while (bytes >= kChunkBytes) {
    write_hashed(next, kChunkBytes);
    next += kChunkBytes;
    bytes -= kChunkBytes;
  }
  buffer_.insert(buffer_.end(), next, next + bytes);
}

FileDigest HashedFileWriter::finish() {
  flush();
  if (::fsync(fd_.get()) != 0) throw SystemError("fsync", path_.string(), errno);
  fd_.close();
  return {bytes_, hash_.hex()};
}

void HashedFileWriter::flush() {
  if (buffer_.empty()) return;
  write_hashed(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void HashedFileWriter::write_hashed(const char* data, size_t bytes) {
  hash_.update(data, bytes);
  write_all(fd_.get(), {data, bytes}, path_);
  bytes_ += static_cast<int64_t>(bytes);
}

}  // namespace gnomon
