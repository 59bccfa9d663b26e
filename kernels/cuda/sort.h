// Places of tokens sorted by token, stably, on the device: for an embedding's gradient that adds up
// in one order.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

// Bytes of scratch for `count` places.
int64_t sort_scratch_bytes(int64_t count);
// sorted = tokens in ascending order, order = their places, those of one token ascending. Returns
// when the work is on the stream.
void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order,
                 void* scratch, int64_t scratch_bytes, Stream stream);

}  // namespace gnomon::cuda
