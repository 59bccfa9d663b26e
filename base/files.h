// Files written so that a crash or a full disk leaves either the old content or the new, never
// half.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// Whole content of `path`. Throws SystemError.
std::string read_file(const std::filesystem::path& path);

// Replaces `path`: temporary name beside it, write, fsync, rename, fsync of the directory. Throws
// SystemError, and then removes the temporary file.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// fsync of a file or a directory by path. Throws SystemError.
void sync_path(const std::filesystem::path& path);

// True when there is a file, or a folder, at `path`, links followed. False also where the system
// cannot look: a name that is too long, a folder that may not be entered.
bool is_file_at(const std::filesystem::path& path);
bool is_folder_at(const std::filesystem::path& path);

// True when `path`, every link in it resolved, is one of `roots` or lies below one. False for what
// is not there.
bool lies_below(const std::filesystem::path& path, const std::vector<std::filesystem::path>& roots);

// An open file descriptor that is closed when it goes out of scope.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  // Throws SystemError. `flags` and `mode` as for open(2); O_CLOEXEC is added.
  static FileDescriptor open(const std::filesystem::path& path, int flags, unsigned mode = 0644);

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// Writes all of `data` at the descriptor's position, restarting after EINTR. Throws SystemError
// naming `path`.
void write_all(int fd, std::string_view data, const std::filesystem::path& path);

}  // namespace gnomon
