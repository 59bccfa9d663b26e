// Causal attention on blocks of query rows, by one thread for each head; masked parts are skipped,
// softmax is in FP32, and only the log-sum-exp of each row is kept for the backward pass, which
// computes the probabilities again. BF16 runs through kernels/cpu/attention_avx512.h where that
// runs; everything else through products of oneDNN.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"

namespace gnomon::cpu {

// The prepared products for one shape, a set for each thread. E is bf16 or float.
template <class E>
class Attention {
 public:
  Attention(const dnnl::engine& engine, const AttentionShape& shape, int threads);

  static int64_t saved_bytes(const AttentionShape& shape);
  static int64_t scratch_bytes(const AttentionShape& shape, int threads);

  void forward(const E* q, const E* k, const E* v, E* o, std::byte* saved, std::byte* scratch);
  void backward(const E* q, const E* k, const E* v, const E* o, const E* d_o, E* dq, E* dk, E* dv,
                const std::byte* saved, std::byte* scratch);

 private:
  // Products for the query rows [first, first + rows), which see the keys [0, keys).
  struct Block {
    int64_t first, rows, keys;
    std::unique_ptr<Matmul> scores, output;               // Q·Kᵀ, P·V
    std::unique_ptr<Matmul> d_probabilities, dq, dk, dv;  // dO·Vᵀ, dS·K, dSᵀ·Q, Pᵀ·dO
  };
  static bool avx512_runs(const AttentionShape& shape);
  static int64_t thread_scratch_bytes(const AttentionShape& shape);
  void make_products(const dnnl::engine& engine);
  // Calls work(thread, sequence, key head) for each key head, in each thread its share.
  template <class Work>
  void for_key_heads(Work work);
  struct Worker {
    void run(Matmul& matmul, const E* a, const E* b, float* c);

    dnnl::stream stream;
    std::vector<Block> blocks;
    GrowingScratch library_scratch;  // oneDNN asks for some where a matrix is tiny
  };
  struct Scratch;

  void forward_head(Worker& worker, const Scratch& scratch, const E* q, const E* k, const E* v,
                    E* o, float* log_sums);
  void backward_head(Worker& worker, const Scratch& scratch, const E* q, const E* k, const E* v,
                     const E* o, const E* d_o, E* dq, const float* log_sums);

  AttentionShape shape_;
  int threads_;
  int64_t q_stride_, kv_stride_, o_stride_, dq_stride_, dkv_stride_;
  float scale_;  // 1/√head_dim
  std::vector<Worker> workers_;
};

}  // namespace gnomon::cpu
