#include "kernels/cuda/cudnn.h"

#include <fmt/format.h>

#include <array>

#include "kernels/cuda/vendor_folders.h"

namespace gnomon::cuda {

const SharedLibrary& cudnn() {
  static const SharedLibrary library(
      {.what = "cuDNN, which has fused kernels for attention",
       .file = "libcudnn.so.9",
       .folders = vendor_folders(),
       .advice = "It is NVIDIA's cuDNN 9 for CUDA 13; where it lies elsewhere, name its folder in "
                 "LD_LIBRARY_PATH."});
  return library;
}

std::string cudnn_version() {
  const size_t version = GNOMON_CUDNN(cudnnGetVersion)();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check(cudnnStatus_t status, std::string_view call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> said{};
  GNOMON_CUDNN(cudnnGetLastErrorString)(said.data(), said.size() - 1);
  const std::string text =
      fmt::format("cuDNN: {} gave {} ({})", call, GNOMON_CUDNN(cudnnGetErrorString)(status),
                  said[0] == '\0' ? "without a reason" : said.data());
  const bool library_missing = status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING;
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED && !library_missing) {
    throw NotSupported(text);
  }
  throw CudaError(text);
}

}  // namespace gnomon::cuda
