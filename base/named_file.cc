#include "base/named_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon {
namespace {

// Why a file of this kind is not read; empty for a regular one.
std::string kind_in_words(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return {};
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a pipe";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "something else";
  }
}

// False when `until` comes first.
bool await_more(const FileDescriptor& pipe, std::chrono::steady_clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  pollfd one{pipe.get(), POLLIN, 0};
  return left.count() > 0 && ::poll(&one, 1, static_cast<int>(left.count())) > 0;
}

std::string read_bounded(const std::filesystem::path& path, size_t bytes_max, bool pipes) {
  constexpr auto kPatience = std::chrono::seconds(10);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  // A pipe without a writer would keep open() waiting, and a terminal would become ours.
  const FileDescriptor fd = FileDescriptor::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw SystemError("look at", path.string(), errno);
  const std::string kind = kind_in_words(status.st_mode);
  if (!kind.empty() && !(pipes && S_ISFIFO(status.st_mode))) {
    throw UnfitFile(
        fmt::format("cannot read {}: it is {}, not a regular file", path.string(), kind));
  }
  std::string content;
  char buffer[1 << 16];
  while (content.size() <= bytes_max) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0) {
      if (errno == EINTR || (errno == EAGAIN && await_more(fd, until))) continue;
      throw SystemError("read", path.string(), errno);
    }
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
  }
  throw UnfitFile(
      fmt::format("cannot read {}: it has more than {} KiB", path.string(), bytes_max >> 10));
}

}  // namespace

std::string read_named_file(const std::filesystem::path& path, size_t bytes_max) {
  return read_bounded(path, bytes_max, false);
}

std::string read_named_file_or_pipe(const std::filesystem::path& path, size_t bytes_max) {
  return read_bounded(path, bytes_max, true);
}

}  // namespace gnomon
