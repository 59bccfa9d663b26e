#include "base/named_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace

std::string read_named_file(const std::filesystem::path& path, size_t bytes_max) {
  // A pipe without a writer would keep open() waiting, and a terminal would become ours.
  const FileDescriptor fd = FileDescriptor::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw SystemError("look at", path.string(), errno);
  if (const std::string kind = kind_in_words(status.st_mode); !kind.empty()) {
    throw Error(fmt::format("cannot read {}: it is {}, not a regular file", path.string(), kind));
  }
  std::string content;
  char buffer[1 << 16];
  while (content.size() <= bytes_max) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0) {
      if (errno == EINTR) continue;
      throw SystemError("read", path.string(), errno);
    }
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
  }
  throw Error(
      fmt::format("cannot read {}: it has more than {} KiB", path.string(), bytes_max >> 10));
}

}  // namespace gnomon
