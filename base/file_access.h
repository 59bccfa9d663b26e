// Whose files are, and who may make some.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"

namespace gnomon {

// Why this process can make no file in `folder`; empty: nothing is known against it.
std::string why_not_writable(const std::filesystem::path& folder);

// Whose a file is and who may do what with it.
struct Ownership {
  unsigned owner = 0;
  unsigned group = 0;
  unsigned mode = 0;  // its permissions alone
};
// Nothing where there is nothing, links followed.
std::optional<Ownership> ownership_of(const std::filesystem::path& path);
// What a file should have that root makes for somebody else: that of the one that it replaces, or
// else the folder's, without execution and without anything for others.
Ownership ownership_for(const std::filesystem::path& path);
// While it is there root has the rights of that owner alone, and what it makes is his: in a folder
// that he may change, names lead where he wants. Nothing for anybody else, and for root's own.
class AsOwner {
 public:
  // Throws Error, with advice, where the system does not let root become him.
  explicit AsOwner(const Ownership& owner);
  ~AsOwner();
  AsOwner(const AsOwner&) = delete;
  AsOwner& operator=(const AsOwner&) = delete;
  bool changed() const { return changed_; }

 private:
  bool changed_ = false;
  unsigned group_ = 0;
  unsigned mask_ = 0;
  std::vector<unsigned> groups_;
};
// Throws SystemError naming `path`.
void give_ownership(const FileDescriptor& file, const Ownership& ownership,
                    const std::filesystem::path& path);

}  // namespace gnomon
