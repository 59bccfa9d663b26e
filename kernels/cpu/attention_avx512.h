// Causal attention of one head at a time with AVX512-BF16 instructions: packed copies of the head's
// matrices, tiles of scores that stay in the first cache level, masked parts skipped. A file of its
// own, compiled for such processors: ask avx512_attention_runs() before making one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/formats.h"

namespace gnomon::cpu {

// True when this build and this processor have it for heads of this width.
bool avx512_attention_runs(int64_t head_dim);

// [tokens, head_dim] of one head in one sequence; rows are `stride` elements apart.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t stride = 0;
  T* row(int64_t index) const { return data + index * stride; }
};

class Avx512Attention {
 public:
  // Works in `memory`, 64-byte aligned, of scratch_bytes().
  Avx512Attention(int64_t tokens, int64_t head_dim, float scale, std::byte* memory);
  static int64_t scratch_bytes(int64_t tokens, int64_t head_dim);

  // o = softmax(scale·q·kᵀ)·v for every query head that shares the keys given last;
  // log_sums[tokens] is what backward() needs.
  void start_forward(HeadRows<const bf16> k, HeadRows<const bf16> v);
  void forward(HeadRows<const bf16> q, HeadRows<bf16> o, float* log_sums);

  // The same backwards: start, one call for every query head, finish.
  void start_backward(HeadRows<const bf16> k, HeadRows<const bf16> v);
  void backward(HeadRows<const bf16> q, HeadRows<const bf16> o, HeadRows<const bf16> d_o,
                const float* log_sums, HeadRows<bf16> dq);
  void finish_backward(HeadRows<bf16> dk, HeadRows<bf16> dv);

 private:
  template <class T>
  T* allocate(int64_t count);
  void allocate_all();
  void backward_block(int64_t keys_begin, int64_t queries_begin);
  void backward_tile(int64_t keys_begin, int64_t key, int64_t rows, int64_t queries_begin);

  int64_t tokens_;
  int64_t blocks_;  // of kBlock tokens, the last one padded with zeros
  int64_t dim_;
  float scale_;
  std::byte* memory_;
  int64_t used_ = 0;

  HeadRows<const bf16> k_, v_;
  // Operands as the instruction takes them: two neighbours along the summed dimension side by side.
  bf16 *keys_by_dim_, *queries_by_dim_, *d_outputs_by_dim_;          // [blocks][dim/2][kBlock][2]
  bf16 *values_by_token_, *queries_by_token_, *d_outputs_by_token_;  // [tokens/2][dim][2]
  bf16* keys_transposed_;                                            // [blocks][dim][kBlock]
  bf16 *probabilities_, *d_scores_;                                  // a tile, a row for each key
  bf16* d_score_pairs_;                                              // [kBlock/2][kBlock][2]
  float *scores_, *d_probabilities_;                                 // a tile
  float *dk_, *dv_;                                                  // [tokens][dim]
  float* dq_transposed_;                                             // [blocks][dim][kBlock]
  float *log_sums_, *deltas_;                                        // [tokens]
};

}  // namespace gnomon::cpu
