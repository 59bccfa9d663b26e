// Causal attention on the device without a library's help, for head widths that are multiples of 8
// up to 256: softmax(q·kᵀ/√head_dim)·v, forward and backward (the meanings are those of BackendOf).
// FP32 arithmetic on values in shared memory, no tensor cores: several times slower than cuDNN's
// kernels, which are taken where they are there. Deterministic: every sum has one order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

inline constexpr int kHeadDimMax = 256;

// Bytes of the logarithms of the softmax's sums, forward → backward, and of the backward's scratch:
// an FP32 for each query and head.
int64_t attention_saved_bytes(const AttentionShape& shape);
int64_t attention_scratch_bytes(const AttentionShape& shape);

// Strides are given, not 0.
void attention(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
               std::byte* saved, Stream stream);
void attention_backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                        const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                        const std::byte* saved, std::byte* scratch, Stream stream);

}  // namespace gnomon::cuda
