#include "base/file_access.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
  like->mode &= 0640;
  return *like;
}

AsOwner::AsOwner(const Ownership& owner) {
  if (::geteuid() != 0 || owner.owner == 0) return;
  const int count = ::getgroups(0, nullptr);
  groups_.resize(static_cast<size_t>(std::max(count, 0)));
  if (count > 0 && ::getgroups(count, groups_.data()) < 0) groups_.clear();
  group_ = ::getegid();
  const gid_t group = owner.group;
  if (::setgroups(1, &group) != 0 || ::setegid(owner.group) != 0 || ::seteuid(owner.owner) != 0) {
    const int error = errno;
    [[maybe_unused]] const bool back =
        ::setegid(group_) == 0 && ::setgroups(groups_.size(), groups_.data()) == 0;
    throw Error(
        fmt::format("root cannot become user {} here, whose folder it is: {}; do it as that user",
                    owner.owner, std::strerror(error)));
  }
  changed_ = true;
  mask_ = ::umask(~owner.mode & 0777);
}

AsOwner::~AsOwner() {
  if (!changed_) return;
  ::umask(mask_);
  [[maybe_unused]] const bool back = ::seteuid(0) == 0 && ::setegid(group_) == 0 &&
                                     ::setgroups(groups_.size(), groups_.data()) == 0;
}

void give_ownership(const FileDescriptor& file, const Ownership& ownership,
                    const std::filesystem::path& path) {
  if (::fchown(file.get(), ownership.owner, ownership.group) != 0 ||
      ::fchmod(file.get(), ownership.mode) != 0) {
    throw SystemError("give its owner and mode to", path.string(), errno);
  }
}

}  // namespace gnomon
