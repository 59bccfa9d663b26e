#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errors.h"

namespace gnomon {

bool is_file_at(const std::filesystem::path& path) {
  std::error_code unseen;
  return std::filesystem::is_regular_file(path, unseen);
}

bool is_folder_at(const std::filesystem::path& path) {
  std::error_code unseen;
  return std::filesystem::is_directory(path, unseen);
}

bool lies_below(const std::filesystem::path& path,
                const std::vector<std::filesystem::path>& roots) {
  namespace fs = std::filesystem;
  std::error_code absent;
  const fs::path real = fs::canonical(path, absent);
  if (absent) return false;
  return std::ranges::any_of(roots, [&](const fs::path& root) {
    const fs::path top = fs::canonical(root, absent);
    return !absent &&
           std::mismatch(top.begin(), top.end(), real.begin(), real.end()).first == top.end();
  });
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() { close(); }

FileDescriptor FileDescriptor::open(const std::filesystem::path& path, int flags, unsigned mode) {
  int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) throw SystemError("open", path.string(), errno);
  return FileDescriptor(fd);
}

void FileDescriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void write_all(int fd, std::string_view data, const std::filesystem::path& path) {
  while (!data.empty()) {
    ssize_t written = ::write(fd, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw SystemError("write", path.string(), errno);
    }
    data.remove_prefix(static_cast<size_t>(written));
  }
}

std::string read_file(const std::filesystem::path& path) {
  FileDescriptor fd = FileDescriptor::open(path, O_RDONLY);
  std::string content;
  char buffer[1 << 16];
  while (true) {
    ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0) {
      if (errno == EINTR) continue;
      throw SystemError("read", path.string(), errno);
    }
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
  }
}

void sync_path(const std::filesystem::path& path) {
  FileDescriptor fd = FileDescriptor::open(path, O_RDONLY);
  if (::fsync(fd.get()) != 0) throw SystemError("fsync", path.string(), errno);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp" + std::to_string(::gettid());  // threads may replace the same file
  try {
    FileDescriptor fd = FileDescriptor::open(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(fd.get(), content, temporary);
    if (::fsync(fd.get()) != 0) throw SystemError("fsync", temporary.string(), errno);
    fd.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw SystemError("rename", temporary.string(), errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

}  // namespace gnomon
