#include "storage/staging_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>

#include "base/errors.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".staging-";
constexpr auto kForeignAge = std::chrono::hours(24);

// This host's name without the characters that separate the parts of a staging name.
std::string host_part() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown";
  std::string host(name.data());
  std::replace_if(
      host.begin(), host.end(), [](char c) { return c == '.' || c == '/'; }, '_');
  return host;
}

// flock that is not interrupted; the descriptor stays empty when `path` cannot be opened.
FileDescriptor open_directory(const fs::path& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool lock(const FileDescriptor& fd, int operation) {
  int result = 0;
  do {
    result = ::flock(fd.get(), operation);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool process_is_gone(std::string_view digits) {
  pid_t pid = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  bool number = error == std::errc() && end == digits.data() + digits.size() && pid > 0;
  return number && ::kill(pid, 0) != 0 && errno == ESRCH;
}

bool is_abandoned(const fs::path& path) {
  std::string name = path.filename().string();
  size_t random = name.rfind('.');
  size_t pid = random == std::string::npos ? random : name.rfind('.', random - 1);
  size_t host = pid == std::string::npos ? pid : name.rfind('.', pid - 1);
  if (host == std::string::npos) return false;
  if (std::string_view(name).substr(host + 1, pid - host - 1) != host_part()) {
    std::error_code error;
    auto touched = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - touched > kForeignAge;
  }
  FileDescriptor fd = open_directory(path);
  if (!fd) return false;
  if (lock(fd, LOCK_EX | LOCK_NB)) return true;
  if (errno == EWOULDBLOCK) return false;
  return process_is_gone(std::string_view(name).substr(pid + 1, random - pid - 1));
}

// Renames, exchanging the two when `to` is a directory with content. Returns whether it exchanged.
bool rename_or_exchange(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return false;
  if (errno != ENOTEMPTY && errno != EEXIST) throw SystemError("rename", from.string(), errno);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0)
    throw SystemError("exchange", to.string(), errno);
  return true;
}

}  // namespace

StagingDirectory::StagingDirectory(const fs::path& parent, const std::string& name) {
  // Whoever cleans up holds the parent exclusively, so it never sees a directory between mkdir and
  // flock.
  FileDescriptor parent_fd = open_directory(parent);
  if (!parent_fd) throw SystemError("open", parent.string(), errno);
  lock(parent_fd, LOCK_SH);
  std::string pattern =
      (parent / fmt::format("{}{}.{}.{}.XXXXXX", kPrefix, name, host_part(), ::getpid())).string();
  if (::mkdtemp(pattern.data()) == nullptr) throw SystemError("create", pattern, errno);
  path_ = pattern;
  ::chmod(path_.c_str(), 0755);
  lock_ = open_directory(path_);
  if (lock_) lock(lock_, LOCK_EX | LOCK_NB);
}

StagingDirectory StagingDirectory::claim(const fs::path& directory) {
  StagingDirectory staging(directory.parent_path(), directory.filename().string());
  if (::rename(directory.c_str(), staging.path_.c_str()) != 0)
    throw SystemError("rename", directory.string(), errno);
  // The new name is on the disk before any file goes: a power cut leaves no half directory under
  // the old one.
  sync_path(directory.parent_path());
  return staging;
}

StagingDirectory::StagingDirectory(StagingDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

StagingDirectory::~StagingDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void StagingDirectory::commit(const fs::path& target) {
  sync_path(path_);
  bool exchanged = rename_or_exchange(path_, target);
  try {
    sync_path(target.parent_path());
  } catch (...) {
    rename_or_exchange(target, path_);
    throw;
  }
  if (!exchanged) path_.clear();
}

void remove_abandoned_staging(const fs::path& parent) {
  FileDescriptor parent_fd = open_directory(parent);
  if (!parent_fd) return;
  // Somebody is just creating a directory: the next start will clean up.
  if (!lock(parent_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return;
  for (const fs::path& path : list_directory(parent)) {
    std::error_code ignored;
    if (path.filename().string().starts_with(kPrefix) && is_abandoned(path))
      fs::remove_all(path, ignored);
  }
}

std::vector<fs::path> list_directory(const fs::path& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    paths.push_back(entry->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw SystemError("list", directory.string(), error.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace gnomon
