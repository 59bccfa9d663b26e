#include "storage/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  FileDescriptor fd = FileDescriptor::open(path, O_RDONLY);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw SystemError("stat", path.string(), errno);
  if (S_ISDIR(status.st_mode)) throw SystemError("read", path.string(), EISDIR);
  if (!S_ISREG(status.st_mode)) throw SystemError("map", path.string(), ENODEV);
  size_ = status.st_size;
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) throw SystemError("map", path.string(), errno);
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void MappedFile::unmap() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

}  // namespace gnomon
