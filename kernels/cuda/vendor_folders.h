// Where the libraries of the CUDA toolkit may lie besides the loader's own folders.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace gnomon::cuda {

// Those of a list as in PATH, and below each the folders NAME/lib, ascending: given the folder
// `nvidia` of a Python environment, that is where pip's packages put the libraries.
inline std::vector<std::string> folders_of(const std::string& list) {
  std::vector<std::string> found;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(':', at), list.size());
    const std::string folder = list.substr(at, end - at);
    at = end + 1;
    if (folder.empty()) continue;
    found.push_back(folder);
    std::vector<std::string> below;
    std::error_code ignored;  // a folder that is not there has none
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      const std::filesystem::path libraries = entry.path() / "lib";
      if (std::filesystem::is_directory(libraries, ignored)) below.push_back(libraries.string());
    }
    std::ranges::sort(below);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

// GNOMON_CUDA_LIBRARIES names folders to look in before those of the loader ("") and the usual
// ones.
inline std::vector<std::string> vendor_folders() {
  const char* given = std::getenv("GNOMON_CUDA_LIBRARIES");
  std::vector<std::string> folders = folders_of(given == nullptr ? "" : given);
  for (const char* usual :
       {"", "/usr/local/cuda/lib64", "/usr/local/cuda/lib", GNOMON_CUDA_LIBRARY_FOLDER}) {
    folders.emplace_back(usual);
  }
  return folders;
}

}  // namespace gnomon::cuda
