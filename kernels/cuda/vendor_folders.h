// Where the libraries of the CUDA toolkit may lie besides the loader's own folders.
#pragma once

#include <string>
#include <vector>

namespace gnomon::cuda {

inline std::vector<std::string> vendor_folders() {
  return {"/usr/local/cuda/lib64", "/usr/local/cuda/lib", GNOMON_CUDA_LIBRARY_FOLDER};
}

}  // namespace gnomon::cuda
