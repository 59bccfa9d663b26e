#include "kernels/cuda/attention_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"

namespace gnomon::cuda {
namespace {

using Element = GraphTensor::Element;
using Operation = GraphOperation;

Four heads_of(const AttentionShape& s, int heads) {
  return {s.sequences, heads, s.tokens, s.head_dim};
}
Four strides_of(const AttentionShape& s, int64_t stride) {
  return {s.tokens * stride, s.head_dim, stride, 1};
}
Four transposed(Four x) {
  std::swap(x[2], x[3]);
  return x;
}
Four scores_of(const AttentionShape& s) { return {s.sequences, s.heads, s.tokens, s.tokens}; }
Four rows_of(const AttentionShape& s) { return {s.sequences, s.heads, s.tokens, 1}; }

int statistics(OperationGraph& graph, const AttentionShape& s) {
  return graph.in_memory(rows_of(s), {s.heads * s.tokens, s.tokens, 1, 1}, Element::kFp32);
}

int product(OperationGraph& graph, const AttentionShape& s, int x, int y) {
  const int result = graph.between(scores_of(s));
  graph.apply(Operation::kProduct, x, y, result);
  return result;
}

int place_along(OperationGraph& graph, const AttentionShape& s, int x, int axis) {
  const int result = graph.between(scores_of(s), Element::kInt32);
  graph.apply(Operation::kPlaceAlong, x, -1, result);
  graph.steps.back().axis = axis;
  return result;
}

// Scores of keys that come after the query become −∞.
int causal(OperationGraph& graph, const AttentionShape& s, int scores) {
  const int result = graph.between(scores_of(s));
  const int nothing = graph.number(-std::numeric_limits<float>::infinity());
  const int query = place_along(graph, s, scores, 2), key = place_along(graph, s, scores, 3);
  const int seen = graph.between(scores_of(s), Element::kBool);
  graph.apply(Operation::kAtLeast, query, key, seen);
  graph.apply(Operation::kSelect, scores, nothing, result);
  graph.steps.back().condition = seen;
  return result;
}

// The gradient of keys or values: a product for each head, summed over those that share them.
void product_for_keys(OperationGraph& graph, const AttentionShape& s, int x, int y, int result) {
  if (s.heads == s.kv_heads) return graph.apply(Operation::kProduct, x, y, result);
  const int of_heads = graph.between(heads_of(s, s.heads), Element::kBf16);
  graph.apply(Operation::kProduct, x, y, of_heads);
  graph.apply(Operation::kSum, of_heads, -1, result);
}

// [queries, keys] seen as [keys, queries], rounded for a product.
int turned(OperationGraph& graph, const AttentionShape& s, int x) {
  const int result = graph.between(scores_of(s), Element::kBf16);
  auto& strides = graph.tensors[static_cast<size_t>(result)].strides;
  strides = transposed(strides);
  graph.apply(Operation::kView, x, -1, result);
  return result;
}

int scale_of(OperationGraph& graph, const AttentionShape& s) {
  return graph.number(1.0f / std::sqrt(static_cast<float>(s.head_dim)));
}

int64_t in_tiles(int64_t tokens, int64_t tile) { return (tokens + tile - 1) / tile * tile; }

}  // namespace

OperationGraph attention_forward_graph(const AttentionShape& s, int64_t stride_o) {
  OperationGraph graph;
  const Four keys = heads_of(s, s.kv_heads), key_strides = strides_of(s, s.stride_kv);
  graph.in_memory(heads_of(s, s.heads), strides_of(s, s.stride_q), Element::kBf16);
  graph.in_memory(transposed(keys), transposed(key_strides), Element::kBf16);
  graph.in_memory(keys, key_strides, Element::kBf16);
  graph.in_memory(heads_of(s, s.heads), strides_of(s, stride_o), Element::kBf16);
  const int lse = statistics(graph, s);
  GNOMON_ASSERT(lse == kLse);
  const int scores =
      graph.apply(Operation::kMultiply, product(graph, s, kQ, kK), scale_of(graph, s));
  const int seen = causal(graph, s, scores);
  const int largest = graph.between(rows_of(s)), sum = graph.between(rows_of(s));
  graph.apply(Operation::kLargest, seen, -1, largest);
  const int terms =
      graph.apply(Operation::kExponential, graph.apply(Operation::kSubtract, seen, largest));
  graph.apply(Operation::kSum, terms, -1, sum);
  graph.apply(Operation::kAdd, largest, graph.apply(Operation::kLogarithm, sum), lse);
  const int shares = graph.between(scores_of(s), Element::kBf16);
  graph.apply(Operation::kDivide, terms, sum, shares);
  graph.apply(Operation::kProduct, shares, kV, kO);
  return graph;
}

OperationGraph attention_backward_graph(const AttentionShape& s, int64_t stride_o) {
  OperationGraph graph;
  const Four queries = heads_of(s, s.heads), keys = heads_of(s, s.kv_heads);
  const Four key_strides = strides_of(s, s.stride_kv), o_strides = strides_of(s, stride_o);
  graph.in_memory(queries, strides_of(s, s.stride_q), Element::kBf16);
  graph.in_memory(transposed(keys), transposed(key_strides), Element::kBf16);
  graph.in_memory(transposed(keys), transposed(key_strides), Element::kBf16);
  graph.in_memory(queries, o_strides, Element::kBf16);
  statistics(graph, s);
  graph.in_memory(queries, o_strides, Element::kBf16);
  graph.in_memory(queries, strides_of(s, s.stride_dq), Element::kBf16);
  graph.in_memory(keys, strides_of(s, s.stride_dkv), Element::kBf16);
  graph.in_memory(keys, strides_of(s, s.stride_dkv), Element::kBf16);
  const int delta = statistics(graph, s);
  GNOMON_ASSERT(delta == kDelta);

  // Multiplied by 1 where a dropout's factor would stand: the kernels are recognised by it.
  const int sum = graph.between(rows_of(s));
  graph.apply(Operation::kSum, graph.apply(Operation::kMultiply, kDO, kO), -1, sum);
  graph.apply(Operation::kMultiply, sum, graph.number(1), kDelta);

  const int scale = scale_of(graph, s);
  const int scores = graph.apply(Operation::kMultiply, product(graph, s, kQ, kK), scale);
  const int seen = causal(graph, s, graph.apply(Operation::kSubtract, scores, kLse));
  const int shares = graph.apply(Operation::kExponential, seen);
  product_for_keys(graph, s, turned(graph, s, shares), kDO, kDV);

  const int d_shares = graph.apply(Operation::kSubtract, product(graph, s, kDO, kV), kDelta);
  const int d_scores =
      graph.apply(Operation::kMultiply, graph.apply(Operation::kMultiply, d_shares, shares), scale);
  product_for_keys(graph, s, turned(graph, s, d_scores), kQ, kDK);

  const int keys_again = graph.between(keys);
  graph.tensors[static_cast<size_t>(keys_again)].strides = key_strides;
  graph.apply(Operation::kView, kK, -1, keys_again);
  graph.apply(Operation::kProduct, d_scores, keys_again, kDQ);
  return graph;
}

int64_t attention_matrix_bytes(const AttentionShape& s) {
  return s.sequences * s.heads * in_tiles(s.tokens, 64) * in_tiles(s.tokens, 128) * 2;
}

std::vector<AttentionPart> attention_parts(const AttentionShape& whole, int64_t bytes_most) {
  AttentionShape one = whole;
  one.sequences = 1;
  const int64_t of_sequence = attention_matrix_bytes(one);
  const int64_t of_group = of_sequence / whole.kv_heads;
  std::vector<AttentionPart> parts;
  const int64_t together = std::clamp<int64_t>(bytes_most / of_sequence, 1, whole.sequences);
  const int heads =
      of_sequence <= bytes_most
          ? whole.kv_heads
          : static_cast<int>(std::clamp<int64_t>(bytes_most / of_group, 1, whole.kv_heads));
  for (int64_t sequence = 0; sequence < whole.sequences; sequence += together) {
    for (int head = 0; head < whole.kv_heads; head += heads) {
      parts.push_back({.first_sequence = sequence,
                       .sequences = std::min(together, whole.sequences - sequence),
                       .first_kv_head = head,
                       .kv_heads = std::min(heads, whole.kv_heads - head)});
    }
  }
  return parts;
}

AttentionShape shape_of(const AttentionPart& part, const AttentionShape& whole) {
  AttentionShape shape = whole;
  shape.sequences = part.sequences;
  shape.heads = whole.heads / whole.kv_heads * part.kv_heads;
  shape.kv_heads = part.kv_heads;
  return shape;
}

int64_t attention_offset(AttentionTensor tensor, const AttentionPart& part,
                         const AttentionShape& whole) {
  const int64_t group = whole.heads / whole.kv_heads;
  const int64_t row = part.first_sequence * whole.tokens;
  const int64_t query_head = part.first_kv_head * group * whole.head_dim;
  const int64_t key_head = int64_t{part.first_kv_head} * whole.head_dim;
  switch (tensor) {
    case kQ:
      return row * whole.stride_q + query_head;
    case kDQ:
      return row * whole.stride_dq + query_head;
    case kK:
    case kV:
      return row * whole.stride_kv + key_head;
    case kDK:
    case kDV:
      return row * whole.stride_dkv + key_head;
    case kO:
    case kDO:
      return row * whole.heads * whole.head_dim + query_head;
    case kLse:
      return (part.first_sequence * whole.heads + part.first_kv_head * group) * whole.tokens;
    case kDelta:
      return 0;  // of one run
    case kAttentionTensors:
      break;
  }
  GNOMON_ASSERT(false);
  return 0;
}

}  // namespace gnomon::cuda
