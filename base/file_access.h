// Whose files are, and who may make some.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

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
// else the folder's, without execution and writing by everybody.
Ownership ownership_for(const std::filesystem::path& path);
// Throws SystemError naming `path`.
void give_ownership(const FileDescriptor& file, const Ownership& ownership,
                    const std::filesystem::path& path);

}  // namespace gnomon
