#include "base/file_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace gnomon {

std::string why_not_writable(const std::filesystem::path& folder) {
  if (!is_folder_at(folder)) return "there is no folder " + folder.string();
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  return "the folder " + folder.string() + " cannot be written: " + std::strerror(errno);
}

std::optional<Ownership> ownership_of(const std::filesystem::path& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return Ownership{found.st_uid, found.st_gid, found.st_mode & 0777};
}

Ownership ownership_for(const std::filesystem::path& path) {
  if (const std::optional<Ownership> old = ownership_of(path)) return *old;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::optional<Ownership> like = ownership_of(folder);
  if (!like) throw SystemError("look at", folder.string(), errno);
  like->mode &= 0664;
  return *like;
}

void give_ownership(const FileDescriptor& file, const Ownership& ownership,
                    const std::filesystem::path& path) {
  if (::fchown(file.get(), ownership.owner, ownership.group) != 0 ||
      ::fchmod(file.get(), ownership.mode) != 0) {
    throw SystemError("give its owner and mode to", path.string(), errno);
  }
}

}  // namespace gnomon
