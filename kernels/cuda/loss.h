// The two ends of a model on the device (the meanings are those of BackendOf). Pointers are 16-byte
// aligned. Every function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

// y[i] = table[tokens[i]]; width is a multiple of 8. Tokens are not checked.
void embed(const int32_t* tokens, int64_t count, const bf16* table, int64_t width, bf16* y,
           Stream stream);

// dtable[token] += Σ dy over its places, in their order. `order` has the places sorted by token,
// those of one token ascending (a stable sort), and `sorted` their tokens.
void embed_backward(const int32_t* sorted, const int32_t* order, int64_t count, const bf16* dy,
                    int64_t width, float* dtable, Stream stream);

void cross_entropy(bf16* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                   float scale, bool with_gradient, float* losses, float* amax, Stream stream);

}  // namespace gnomon::cuda
