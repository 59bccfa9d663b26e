// Causal attention as a graph of operations for cuDNN, in the form that its fused kernels are
// recognised by: softmax(q·kᵀ/√head_dim)·v with log Σ exp kept, and the gradients. Nothing here
// needs the library.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/operation_graph.h"

namespace gnomon::cuda {

// The tensors in memory: their numbers in both graphs. The forward graph has the first five.
enum AttentionTensor : int { kQ, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV, kDelta, kAttentionTensors };

// `shape` with its strides given. Rows of o and d_o are `stride_o` elements apart, which is more
// than the shape's heads need where it stands for some heads of several.
OperationGraph attention_forward_graph(const AttentionShape& shape, int64_t stride_o);
// dq is made from the whole matrix dS at once, which a kernel then keeps in its workspace: so no
// sum depends on the order in which blocks come.
OperationGraph attention_backward_graph(const AttentionShape& shape, int64_t stride_o);

// Some sequences with some of their heads: what one run of a plan does. The heads are those that
// share the keys and values of `kv_heads`.
struct AttentionPart {
  int64_t first_sequence, sequences;
  int first_kv_head, kv_heads;
  bool operator==(const AttentionPart&) const = default;
};

// Bytes of dS for this shape, in whole tiles.
int64_t attention_matrix_bytes(const AttentionShape& shape);

// In how many runs the backward pass is made so that the matrix of each has at most `bytes_most`,
// if that can be: the sequences together or in groups, or one by one and some heads at a time. One
// group of heads is never split.
std::vector<AttentionPart> attention_parts(const AttentionShape& shape, int64_t bytes_most);
AttentionShape shape_of(const AttentionPart& part, const AttentionShape& whole);

// Elements from the beginning of a tensor of the whole to what belongs to the part.
int64_t attention_offset(AttentionTensor tensor, const AttentionPart& part,
                         const AttentionShape& whole);

}  // namespace gnomon::cuda
