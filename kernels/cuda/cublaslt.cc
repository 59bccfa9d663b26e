#include "kernels/cuda/cublaslt.h"

#include "kernels/cuda/vendor_folders.h"

namespace gnomon::cuda {

const SharedLibrary& cublaslt() {
  static const SharedLibrary library(
      {.what = "cuBLASLt, which makes the GPU's matrix products",
       .file = "libcublasLt.so.13",
       .folders = vendor_folders(),
       .advice = "It is part of the CUDA 13 toolkit; where it lies elsewhere, name its folder in "
                 "LD_LIBRARY_PATH."});
  return library;
}

}  // namespace gnomon::cuda
