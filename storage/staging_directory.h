// Directories that appear under their final name in one instant or not at all. Until then they have
// a hidden name that carries host and process, and are locked (flock), so that what a crashed
// writer left behind can be told from what a living one, even in another process, is still writing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"

namespace gnomon {

class StagingDirectory {
 public:
  // Creates parent/.staging-<name>.<host>.<pid>.<random>. Throws SystemError.
  StagingDirectory(const std::filesystem::path& parent, const std::string& name);
  // Adopts an existing directory by renaming it to a staging name, so that destruction removes it
  // as a whole.
  static StagingDirectory claim(const std::filesystem::path& directory);
  ~StagingDirectory();  // removes what has no final name
  StagingDirectory(StagingDirectory&&) noexcept;

  const std::filesystem::path& path() const { return path_; }

  // fsyncs the directory (its files are the caller's duty), renames it to `target` in the same
  // parent and fsyncs the parent. A directory that has that name already is exchanged with it and
  // removed. Throws SystemError; then `target` is what it was before.
  void commit(const std::filesystem::path& target);

 private:
  StagingDirectory() = default;

  std::filesystem::path path_;
  FileDescriptor lock_;
};

// Removes the staging directories in `parent` whose writers are gone: on this host those that
// nobody locks, of other hosts those not touched for a day. What cannot be removed stays.
void remove_abandoned_staging(const std::filesystem::path& parent);

// Paths in `directory`, sorted; none when it does not exist. Throws SystemError.
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory);

}  // namespace gnomon
