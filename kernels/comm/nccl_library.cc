#include "kernels/comm/nccl_library.h"

#include "kernels/cuda/vendor_folders.h"

namespace gnomon::cuda {

const SharedLibrary& nccl_library() {
  static const SharedLibrary library(
      {.what = "NCCL, by which ranks on GPUs exchange gradients and weights",
       .file = "libnccl.so.2",
       .folders = vendor_folders(),
       .advice = "It is the vendor's package libnccl2 (2.18 or later); where it lies elsewhere, "
                 "name its folder in LD_LIBRARY_PATH."});
  return library;
}

}  // namespace gnomon::cuda
