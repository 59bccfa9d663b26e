// The hash of what lies in the device's memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

// *sum += PlacedHash::terms() of x (base/hash.h), 8-byte aligned, whose first word is at place
// `first`. Returns when the work is on the stream.
void hash_terms(const void* x, int64_t bytes, uint64_t first, uint64_t* sum, Stream stream);

}  // namespace gnomon::cuda
