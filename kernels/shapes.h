// Shapes of matrix products and of attention.
#pragma once

#include <compare>
#include <cstdint>

namespace gnomon {

// C[m,n] = alpha · op(A)[m,k] · op(B)[k,n] + (accumulate ? C : 0), FP32 accumulation, one rounding
// at the end. A is m×k (or k×m when transpose_a), B is k×n (or n×k when transpose_b).
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  // of what is stored
  bool operator==(const GemmShape&) const = default;
};

struct AttentionShape {
  int64_t sequences = 0;  // B
  int64_t tokens = 0;     // T
  int heads = 0;          // H
  int kv_heads = 0;       // divides heads
  int head_dim = 0;
  int64_t stride_q = 0, stride_kv = 0;                      // o and its gradient are dense
  int64_t stride_dq = 0, stride_dkv = 0;                    // of the gradients
  auto operator<=>(const AttentionShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace gnomon
