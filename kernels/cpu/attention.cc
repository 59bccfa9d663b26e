#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/errors.h"
#include "kernels/cpu/attention_avx512.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector_math.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlockRows = 64;
constexpr int64_t kVectorFloats = 16;

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

float row_max(const float* __restrict x, int64_t count) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// Masks a little of what follows the row, so that the loops over it run in whole vectors. Returns
// how many elements that makes.
int64_t mask_to_whole_vectors(float* scores, int64_t count, int64_t keys) {
  int64_t whole = std::min((count + kVectorFloats - 1) / kVectorFloats * kVectorFloats, keys);
  std::fill(scores + count, scores + whole, -std::numeric_limits<float>::infinity());
  return whole;
}

// scores[0, count) become softmax(scale·scores) as BF16 in p; p is 0 from there to `keys`. Returns
// the log of the sum of exponentials.
template <class E>
float softmax_row(float* __restrict scores, E* __restrict p, float scale, int64_t count,
                  int64_t keys) {
  int64_t whole = mask_to_whole_vectors(scores, count, keys);
  float largest = row_max(scores, whole) * scale;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < whole; ++i) {
    float e = fast_exp(scores[i] * scale - largest);
    scores[i] = e;
    sum += e;
  }
  float inverse = 1.0f / sum;
#pragma omp simd
  for (int64_t i = 0; i < whole; ++i) p[i] = from_float<E>(scores[i] * inverse);
  std::fill(p + count, p + keys, E{});
  return largest + std::log(sum);
}

// p = exp(scale·scores − log_sum), ds = p·(dp − delta)·scale, both 0 from `count` to `keys`.
template <class E>
void softmax_backward_row(float* __restrict scores, const float* __restrict dp, E* __restrict p,
                          E* __restrict ds, float scale, float log_sum, float delta, int64_t count,
                          int64_t keys) {
  int64_t whole = mask_to_whole_vectors(scores, count, keys);
#pragma omp simd
  for (int64_t i = 0; i < whole; ++i) {
    float probability = fast_exp(scores[i] * scale - log_sum);
    p[i] = from_float<E>(probability);
    ds[i] = from_float<E>(probability * (dp[i] - delta) * scale);
  }
  std::fill(p + count, p + keys, E{});
  std::fill(ds + count, ds + keys, E{});
}

template <class E>
float dot(const E* __restrict x, const E* __restrict y, int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += to_float(x[i]) * to_float(y[i]);
  return sum;
}

template <class E>
void store_rows(const float* x, int64_t rows, int64_t width, E* y, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* __restrict from = x + row * width;
    E* __restrict to = y + row * stride;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] = from_float<E>(from[i]);
  }
}

}  // namespace

// One thread's part of the scratch memory.
template <class E>
struct Attention<E>::Scratch {
  // `memory` may be null, when only the size is wanted.
  Scratch(const AttentionShape& shape, std::byte* memory) {
    int64_t rows = std::min(kBlockRows, shape.tokens);
    int64_t square = rows * shape.tokens;
    auto allocate = [this, memory]<typename T>(T*& pointer, int64_t count) {
      pointer = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
      bytes += padded(count * static_cast<int64_t>(sizeof(T)));
    };
    allocate(scores, square);
    allocate(d_probabilities, square);
    allocate(probabilities, square);
    allocate(d_scores, square);
    allocate(rows_output, rows * shape.head_dim);
    allocate(dk, shape.tokens * shape.head_dim);
    allocate(dv, shape.tokens * shape.head_dim);
  }
  float* scores;
  float* d_probabilities;
  E* probabilities;
  E* d_scores;
  float* rows_output;
  float* dk;
  float* dv;
  int64_t bytes = 0;
};

template <class E>
int64_t Attention<E>::saved_bytes(const AttentionShape& shape) {
  return shape.sequences * shape.heads * shape.tokens * static_cast<int64_t>(sizeof(float));
}

template <class E>
int64_t Attention<E>::scratch_bytes(const AttentionShape& shape, int threads) {
  return thread_scratch_bytes(shape) * threads;
}

template <class E>
bool Attention<E>::avx512_runs(const AttentionShape& shape) {
  return std::is_same_v<E, bf16> && avx512_attention_runs(shape.head_dim);
}

template <class E>
int64_t Attention<E>::thread_scratch_bytes(const AttentionShape& shape) {
  return avx512_runs(shape) ? Avx512Attention::scratch_bytes(shape.tokens, shape.head_dim)
                            : Scratch(shape, nullptr).bytes;
}

template <class E>
Attention<E>::Attention(const dnnl::engine& engine, const AttentionShape& shape, int threads)
    : shape_(shape),
      threads_(threads),
      q_stride_(row_stride(shape.stride_q, int64_t{shape.heads} * shape.head_dim)),
      kv_stride_(row_stride(shape.stride_kv, int64_t{shape.kv_heads} * shape.head_dim)),
      o_stride_(int64_t{shape.heads} * shape.head_dim),
      dq_stride_(row_stride(shape.stride_dq, int64_t{shape.heads} * shape.head_dim)),
      dkv_stride_(row_stride(shape.stride_dkv, int64_t{shape.kv_heads} * shape.head_dim)),
      scale_(1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {
  GNOMON_ASSERT(shape.sequences > 0 && shape.tokens > 0 && shape.head_dim > 0 &&
                shape.kv_heads > 0);
  GNOMON_ASSERT(shape.heads % shape.kv_heads == 0);
  if (!avx512_runs(shape)) make_products(engine);
}

template <class E>
void Attention<E>::make_products(const dnnl::engine& engine) {
  ThreadCountGuard guard(1);
  constexpr bool kFp32 = std::is_same_v<E, float>;
  int64_t dim = shape_.head_dim;
  auto make = [&](int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, int64_t lda,
                  int64_t ldb, bool accumulate) {
    return std::make_unique<Matmul>(engine, MatmulShape{.m = m,
                                                        .n = n,
                                                        .k = k,
                                                        .transpose_a = transpose_a,
                                                        .transpose_b = transpose_b,
                                                        .lda = lda,
                                                        .ldb = ldb,
                                                        .ldc = n,
                                                        .fp32_operands = kFp32,
                                                        .fp32_output = true,
                                                        .accumulate = accumulate});
  };
  for (int thread = 0; thread < threads_; ++thread) {
    Worker worker{dnnl::stream(engine), {}, {}};
    for (int64_t first = 0; first < shape_.tokens; first += kBlockRows) {
      int64_t rows = std::min(kBlockRows, shape_.tokens - first);
      int64_t keys = first + rows;
      worker.blocks.push_back(
          {.first = first,
           .rows = rows,
           .keys = keys,
           .scores = make(rows, keys, dim, false, true, q_stride_, kv_stride_, false),
           .output = make(rows, dim, keys, false, false, keys, kv_stride_, false),
           .d_probabilities = make(rows, keys, dim, false, true, o_stride_, kv_stride_, false),
           .dq = make(rows, dim, keys, false, false, keys, kv_stride_, false),
           .dk = make(keys, dim, rows, true, false, keys, q_stride_, true),
           .dv = make(keys, dim, rows, true, false, keys, o_stride_, true)});
    }
    workers_.push_back(std::move(worker));
  }
}

template <class E>
void Attention<E>::Worker::run(Matmul& matmul, const E* a, const E* b, float* c) {
  matmul.run(stream, nullptr, a, b, c, library_scratch.at_least(matmul.scratch_bytes()));
}

template <class E>
void Attention<E>::forward_head(Worker& worker, const Scratch& scratch, const E* q, const E* k,
                                const E* v, E* o, float* log_sums) {
  for (Block& block : worker.blocks) {
    worker.run(*block.scores, q + block.first * q_stride_, k, scratch.scores);
    for (int64_t row = 0; row < block.rows; ++row) {
      int64_t at = row * block.keys;
      log_sums[block.first + row] = softmax_row(scratch.scores + at, scratch.probabilities + at,
                                                scale_, block.first + row + 1, block.keys);
    }
    worker.run(*block.output, scratch.probabilities, v, scratch.rows_output);
    store_rows(scratch.rows_output, block.rows, shape_.head_dim, o + block.first * o_stride_,
               o_stride_);
  }
}

template <class E>
void Attention<E>::backward_head(Worker& worker, const Scratch& scratch, const E* q, const E* k,
                                 const E* v, const E* o, const E* d_o, E* dq,
                                 const float* log_sums) {
  for (Block& block : worker.blocks) {
    const E* q_rows = q + block.first * q_stride_;
    const E* d_o_rows = d_o + block.first * o_stride_;
    worker.run(*block.scores, q_rows, k, scratch.scores);
    worker.run(*block.d_probabilities, d_o_rows, v, scratch.d_probabilities);
    for (int64_t row = 0; row < block.rows; ++row) {
      int64_t at = row * block.keys;
      int64_t token = block.first + row;
      float delta = dot(o + token * o_stride_, d_o + token * o_stride_, shape_.head_dim);
      softmax_backward_row(scratch.scores + at, scratch.d_probabilities + at,
                           scratch.probabilities + at, scratch.d_scores + at, scale_,
                           log_sums[token], delta, token + 1, block.keys);
    }
    worker.run(*block.dv, scratch.probabilities, d_o_rows, scratch.dv);
    worker.run(*block.dk, scratch.d_scores, q_rows, scratch.dk);
    worker.run(*block.dq, scratch.d_scores, k, scratch.rows_output);
    store_rows(scratch.rows_output, block.rows, shape_.head_dim, dq + block.first * dq_stride_,
               dq_stride_);
  }
}

template <class E>
template <class Work>
void Attention<E>::for_key_heads(Work work) {
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (int thread = 0; thread < threads_; ++thread) {
    // A team of one is no parallel region to oneDNN: without this it would start its own threads.
    ThreadCountGuard one(1);
    Range range = share_of(shape_.sequences * shape_.kv_heads, thread, threads_);
    for (int64_t task = range.begin; task < range.end; ++task) {
      work(thread, task / shape_.kv_heads, task % shape_.kv_heads);
    }
  }
}

template <class E>
void Attention<E>::forward(const E* q, const E* k, const E* v, E* o, std::byte* saved,
                           std::byte* scratch) {
  auto* log_sums = reinterpret_cast<float*>(saved);
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t dim = shape_.head_dim;
  const int64_t own = thread_scratch_bytes(shape_);
  for_key_heads([&](int thread, int64_t sequence, int64_t kv_head) {
    int64_t first = sequence * shape_.tokens;
    int64_t kv_at = first * kv_stride_ + kv_head * dim;
    std::byte* memory = scratch + own * thread;
    auto for_heads = [&](auto run) {
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        run(q + first * q_stride_ + head * dim, o + first * o_stride_ + head * dim,
            log_sums + (sequence * shape_.heads + head) * shape_.tokens);
      }
    };
    if constexpr (std::is_same_v<E, bf16>) {
      if (avx512_runs(shape_)) {
        Avx512Attention attention(shape_.tokens, dim, scale_, memory);
        attention.start_forward({k + kv_at, kv_stride_}, {v + kv_at, kv_stride_});
        for_heads([&](const bf16* from, bf16* to, float* sums) {
          attention.forward({from, q_stride_}, {to, o_stride_}, sums);
        });
        return;
      }
    }
    Scratch arrays(shape_, memory);
    for_heads([&](const E* from, E* to, float* sums) {
      forward_head(workers_[thread], arrays, from, k + kv_at, v + kv_at, to, sums);
    });
  });
}

template <class E>
void Attention<E>::backward(const E* q, const E* k, const E* v, const E* o, const E* d_o, E* dq,
                            E* dk, E* dv, const std::byte* saved, std::byte* scratch) {
  const auto* log_sums = reinterpret_cast<const float*>(saved);
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t dim = shape_.head_dim;
  const int64_t own = thread_scratch_bytes(shape_);
  for_key_heads([&](int thread, int64_t sequence, int64_t kv_head) {
    int64_t first = sequence * shape_.tokens;
    int64_t kv_at = first * kv_stride_ + kv_head * dim;
    int64_t dkv_at = first * dkv_stride_ + kv_head * dim;
    std::byte* memory = scratch + own * thread;
    auto for_heads = [&](auto run) {
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        int64_t o_at = first * o_stride_ + head * dim;
        run(q + first * q_stride_ + head * dim, o + o_at, d_o + o_at,
            dq + first * dq_stride_ + head * dim,
            log_sums + (sequence * shape_.heads + head) * shape_.tokens);
      }
    };
    if constexpr (std::is_same_v<E, bf16>) {
      if (avx512_runs(shape_)) {
        Avx512Attention attention(shape_.tokens, dim, scale_, memory);
        attention.start_backward({k + kv_at, kv_stride_}, {v + kv_at, kv_stride_});
        for_heads(
            [&](const bf16* from, const bf16* out, const bf16* d_out, bf16* to, const float* sums) {
              attention.backward({from, q_stride_}, {out, o_stride_}, {d_out, o_stride_}, sums,
                                 {to, dq_stride_});
            });
        attention.finish_backward({dk + dkv_at, dkv_stride_}, {dv + dkv_at, dkv_stride_});
        return;
      }
    }
    Scratch arrays(shape_, memory);
    std::fill_n(arrays.dk, shape_.tokens * dim, 0.0f);
    std::fill_n(arrays.dv, shape_.tokens * dim, 0.0f);
    for_heads([&](const E* from, const E* out, const E* d_out, E* to, const float* sums) {
      backward_head(workers_[thread], arrays, from, k + kv_at, v + kv_at, out, d_out, to, sums);
    });
    store_rows(arrays.dk, shape_.tokens, dim, dk + dkv_at, dkv_stride_);
    store_rows(arrays.dv, shape_.tokens, dim, dv + dkv_at, dkv_stride_);
  });
}

template class Attention<bf16>;
template class Attention<float>;

}  // namespace gnomon::cpu
