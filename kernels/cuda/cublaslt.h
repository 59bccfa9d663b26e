// cuBLASLt, opened when it is first used. Only for files of this folder.
#pragma once

#include <cublasLt.h>

#include "base/shared_library.h"

namespace gnomon::cuda {

// Throws MissingLibrary.
const SharedLibrary& cublaslt();

}  // namespace gnomon::cuda

// A function of it: GNOMON_LT(cublasLtMatmul)(...).
#define GNOMON_LT(name) GNOMON_FROM_LIBRARY(::gnomon::cuda::cublaslt(), name)
