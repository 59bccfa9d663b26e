// Bias, rotary position embedding, SwiGLU and rounding on the device (the meanings are those of
// BackendOf). Widths and strides are multiples of 8, pointers 16-byte aligned; strides are given.
// Every function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

void clear_memory(void* memory, int64_t bytes, Stream stream);
// *amax = 0, where there is one.
void forget_amax(float* amax, Stream stream);
void round_sum(const float* x, int64_t count, bf16* y, Stream stream);
void add_bias(bf16* y, int64_t rows, const bf16* bias, int64_t width, int64_t stride,
              Stream stream);
int64_t bias_scratch(int64_t rows, int64_t width);  // floats
void bias_backward(const bf16* dy, int64_t rows, float* db, int64_t width, int64_t stride,
                   float* scratch, Stream stream);
// cosines and sines are [tokens, head_dim/2]; head_dim is even.
void rope(bf16* x, int64_t rows, int64_t tokens, int heads, int head_dim, const float* cosines,
          const float* sines, bool inverse, int64_t stride, Stream stream);
void swiglu(const bf16* gate, const bf16* up, int64_t rows, int64_t width, int64_t stride, bf16* y,
            float* amax, Stream stream);
void swiglu_backward(const bf16* gate, const bf16* up, const bf16* dy, int64_t rows, int64_t width,
                     int64_t stride, bf16* dgate, bf16* dup, int64_t stride_d, float* amax_gate,
                     float* amax_up, Stream stream);

}  // namespace gnomon::cuda
