// NCCL, opened when it is first used. Only for files of this folder.
#pragma once

#include <nccl.h>

#include "base/shared_library.h"

namespace gnomon::cuda {

// Throws MissingLibrary.
const SharedLibrary& nccl_library();

}  // namespace gnomon::cuda

// A function of it: GNOMON_NCCL(ncclSend)(...).
#define GNOMON_NCCL(name) GNOMON_FROM_LIBRARY(::gnomon::cuda::nccl_library(), name)
