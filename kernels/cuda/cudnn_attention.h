// Causal attention by cuDNN's fused kernels (cuDNN 9.16 or later), deterministic forward and
// backward. Only where cuDNN's headers were found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/memory.h"

namespace gnomon::cuda {

// The matrix dS of one run of the backward pass takes at most this much of the workspace, if a
// group of heads of one sequence needs no more.
inline constexpr int64_t kAttentionMatrixBytesMost = int64_t{1} << 30;

// Why cuDNN is not asked for this shape; empty when it is.
std::string attention_refusal(const AttentionShape& shape);

// `only`: a shape that cuDNN refuses is an Error; otherwise it is warned of and our own attention
// takes it. Throws MissingLibrary, or Error for a library that is too old.
std::unique_ptr<Attention> make_cudnn_attention(
    bool only, Memory& memory, Stream stream, std::function<void(const std::string&)> warn,
    int64_t matrix_bytes_most = kAttentionMatrixBytesMost);

}  // namespace gnomon::cuda
