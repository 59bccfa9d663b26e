#include "kernels/cpu/attention_avx512.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.h"
#include "base/rounding.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "kernels/cpu/avx512_tiles.h"
#define GNOMON_AVX512_ATTENTION 1
#endif

namespace gnomon::cpu {

#ifdef GNOMON_AVX512_ATTENTION

namespace {

constexpr int64_t kBlock = 64;        // tokens; four vectors of FP32
constexpr int64_t kForwardRows = 6;   // queries of a forward tile
constexpr int64_t kBackwardRows = 6;  // keys of a backward tile, an even number
constexpr int64_t kHeadDimMax = 256;

// [blocks][dim/2][kBlock][2]: what is summed over the head's width.
void pack_by_dim(HeadRows<const bf16> x, int64_t tokens, int64_t dim, bf16* packed) {
  for (int64_t token = 0; token < round_up(tokens, kBlock); token += kLanes) {
    bf16* block = packed + token / kBlock * kBlock * dim + token % kBlock * 2;
    for (int64_t d = 0; d < dim; d += 2 * kLanes) {
      Square square;
      for (int64_t i = 0; i < kLanes; ++i) {
        square.rows[i] = token + i < tokens ? load(x.row(token + i) + d) : _mm512_setzero_si512();
      }
      square.transpose();
      for (int64_t i = 0; i < kLanes; ++i) store(block + (d / 2 + i) * kBlock * 2, square.rows[i]);
    }
  }
}

// [tokens/2][dim][2]: what is summed over tokens; to whole blocks, with zeros.
void pack_by_token(HeadRows<const bf16> x, int64_t tokens, int64_t dim, bf16* packed) {
  for (int64_t token = 0; token < round_up(tokens, kBlock); token += 2) {
    bf16* pairs = packed + token * dim;
    for (int64_t d = 0; d < dim; d += 2 * kLanes) {
      __m512i zero = _mm512_setzero_si512();
      __m512i even = token < tokens ? load(x.row(token) + d) : zero;
      __m512i odd = token + 1 < tokens ? load(x.row(token + 1) + d) : zero;
      store(pairs + d * 2, interleave_low(even, odd));
      store(pairs + d * 2 + 2 * kLanes, interleave_high(even, odd));
    }
  }
}

// [blocks][dim][kBlock] from pack_by_token's form.
void transpose_packed(const bf16* packed, int64_t blocks, int64_t dim, bf16* transposed) {
  for (int64_t block = 0; block < blocks; ++block) {
    const bf16* from = packed + block * kBlock * dim;
    bf16* to = transposed + block * kBlock * dim;
    for (int64_t token = 0; token < kBlock; token += 2 * kLanes) {
      for (int64_t d = 0; d < dim; d += kLanes) {
        Square square;
        for (int64_t i = 0; i < kLanes; ++i) {
          square.rows[i] = load(from + ((token / 2 + i) * dim + d) * 2);
        }
        square.transpose();
        for (int64_t i = 0; i < kLanes; ++i) store(to + (d + i) * kBlock + token, square.rows[i]);
      }
    }
  }
}

// Rows of BF16 from [blocks][dim][kBlock] of FP32.
void store_transposed(const float* transposed, int64_t tokens, int64_t dim, HeadRows<bf16> y) {
  for (int64_t token = 0; token < tokens; token += kLanes) {
    const float* from = transposed + token / kBlock * kBlock * dim + token % kBlock;
    for (int64_t d = 0; d < dim; d += kLanes) {
      Square square;
      for (int64_t i = 0; i < kLanes; ++i) square.rows[i] = load(from + (d + i) * kBlock);
      square.transpose();
      for (int64_t i = 0; i < std::min(kLanes, tokens - token); ++i) {
        store_bf16(y.row(token + i) + d, _mm512_castsi512_ps(square.rows[i]));
      }
    }
  }
}

void store_rows(const float* x, int64_t tokens, int64_t dim, HeadRows<bf16> y) {
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      store_bf16(y.row(token) + d, _mm512_loadu_ps(x + token * dim + d));
    }
  }
}

// Lanes of the vector that begins at `first` whose index is at most `last`.
__mmask16 up_to(int64_t first, int64_t last) {
  int64_t count = std::clamp<int64_t>(last - first + 1, 0, kLanes);
  return static_cast<__mmask16>((1u << count) - 1u);
}

// e^(scale·score − largest) of the first `count` scores as BF16, zeros behind them up to `columns`.
// Returns the log of the sum, and the sum's inverse in `inverse`.
float softmax_row(const float* scores, int64_t count, int64_t columns, float scale, bf16* p,
                  float& inverse) {
  __m512 most = _mm512_set1_ps(-INFINITY);
  for (int64_t i = 0; i < count; i += kLanes) {
    // The second operand is kept where either is NaN.
    most = _mm512_mask_max_ps(most, up_to(i, count - 1), most, _mm512_loadu_ps(scores + i));
  }
  float largest = _mm512_reduce_max_ps(most) * scale;
  __m512 factor = _mm512_set1_ps(scale);
  __m512 shift = _mm512_set1_ps(largest);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < columns; i += kLanes) {
    __mmask16 valid = up_to(i, count - 1);
    __m512 score = _mm512_maskz_loadu_ps(valid, scores + i);
    __m512 e = _mm512_maskz_mov_ps(valid, exponential(_mm512_fmsub_ps(score, factor, shift)));
    sum = _mm512_add_ps(sum, e);
    store_bf16(p + i, e);
  }
  float total = _mm512_reduce_add_ps(sum);
  inverse = 1.0f / total;
  return largest + std::log(total);
}

}  // namespace

bool avx512_attention_runs(int64_t head_dim) {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && head_dim % (2 * kLanes) == 0 &&
         head_dim <= kHeadDimMax;
}

template <class T>
T* Avx512Attention::allocate(int64_t count) {
  T* pointer = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
  used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  return pointer;
}

void Avx512Attention::allocate_all() {
  int64_t all = blocks_ * kBlock * dim_;
  keys_by_dim_ = allocate<bf16>(all);
  queries_by_dim_ = allocate<bf16>(all);
  d_outputs_by_dim_ = allocate<bf16>(all);
  values_by_token_ = allocate<bf16>(all);
  queries_by_token_ = allocate<bf16>(all);
  d_outputs_by_token_ = allocate<bf16>(all);
  keys_transposed_ = allocate<bf16>(all);
  probabilities_ = allocate<bf16>(kForwardRows * blocks_ * kBlock);
  d_scores_ = allocate<bf16>(kBackwardRows * kBlock);
  d_score_pairs_ = allocate<bf16>(kBlock * kBlock);
  scores_ = allocate<float>(kForwardRows * blocks_ * kBlock);
  d_probabilities_ = allocate<float>(kBackwardRows * kBlock);
  dk_ = allocate<float>(all);
  dv_ = allocate<float>(all);
  dq_transposed_ = allocate<float>(all);
  log_sums_ = allocate<float>(blocks_ * kBlock);
  deltas_ = allocate<float>(blocks_ * kBlock);
}

Avx512Attention::Avx512Attention(int64_t tokens, int64_t head_dim, float scale, std::byte* memory)
    : tokens_(tokens),
      blocks_((tokens + kBlock - 1) / kBlock),
      dim_(head_dim),
      scale_(scale),
      memory_(memory) {
  allocate_all();
}

int64_t Avx512Attention::scratch_bytes(int64_t tokens, int64_t head_dim) {
  return Avx512Attention(tokens, head_dim, 1.0f, nullptr).used_;
}

void Avx512Attention::start_forward(HeadRows<const bf16> k, HeadRows<const bf16> v) {
  pack_by_dim(k, tokens_, dim_, keys_by_dim_);
  pack_by_token(v, tokens_, dim_, values_by_token_);
}

void Avx512Attention::forward(HeadRows<const bf16> q, HeadRows<bf16> o, float* log_sums) {
  const int64_t stride = blocks_ * kBlock;
  for (int64_t first = 0; first < tokens_; first += kForwardRows) {
    int64_t rows = std::min(kForwardRows, tokens_ - first);
    int64_t keys = round_up(first + rows, 2 * kLanes);
    for (int64_t key = 0; key < keys; key += kBlock) {
      product({.rows = rows,
               .columns = std::min(kBlock, keys - key),
               .pairs = dim_ / 2,
               .a = q.row(first),
               .a_stride = q.stride,
               .b = keys_by_dim_ + key * dim_,
               .b_columns = kBlock,
               .c = scores_ + key,
               .c_stride = stride});
    }
    float inverse[kForwardRows];
    for (int64_t row = 0; row < rows; ++row) {
      log_sums[first + row] = softmax_row(scores_ + row * stride, first + row + 1, keys, scale_,
                                          probabilities_ + row * stride, inverse[row]);
    }
    alignas(64) float output[kForwardRows * kHeadDimMax];
    product({.rows = rows,
             .columns = dim_,
             .pairs = keys / 2,
             .a = probabilities_,
             .a_stride = stride,
             .b = values_by_token_,
             .b_columns = dim_,
             .c = output,
             .c_stride = dim_});
    for (int64_t row = 0; row < rows; ++row) {
      __m512 factor = _mm512_set1_ps(inverse[row]);
      for (int64_t d = 0; d < dim_; d += kLanes) {
        store_bf16(o.row(first + row) + d,
                   _mm512_mul_ps(factor, _mm512_loadu_ps(output + row * dim_ + d)));
      }
    }
  }
}

void Avx512Attention::start_backward(HeadRows<const bf16> k, HeadRows<const bf16> v) {
  k_ = k;
  v_ = v;
  pack_by_token(k, tokens_, dim_, queries_by_token_);
  transpose_packed(queries_by_token_, blocks_, dim_, keys_transposed_);
  std::fill_n(dk_, tokens_ * dim_, 0.0f);
  std::fill_n(dv_, tokens_ * dim_, 0.0f);
}

void Avx512Attention::backward(HeadRows<const bf16> q, HeadRows<const bf16> o,
                               HeadRows<const bf16> d_o, const float* log_sums, HeadRows<bf16> dq) {
  pack_by_dim(q, tokens_, dim_, queries_by_dim_);
  pack_by_token(q, tokens_, dim_, queries_by_token_);
  pack_by_dim(d_o, tokens_, dim_, d_outputs_by_dim_);
  pack_by_token(d_o, tokens_, dim_, d_outputs_by_token_);
  std::fill_n(log_sums_, blocks_ * kBlock, 0.0f);
  std::fill_n(deltas_, blocks_ * kBlock, 0.0f);
  std::copy_n(log_sums, tokens_, log_sums_);
  for (int64_t token = 0; token < tokens_; ++token) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < dim_; d += 2 * kLanes) {
      sum = add_products(sum, load(o.row(token) + d), load(d_o.row(token) + d));
    }
    deltas_[token] = _mm512_reduce_add_ps(sum);
  }
  for (int64_t keys = 0; keys < tokens_; keys += kBlock) {
    for (int64_t queries = keys; queries < tokens_; queries += kBlock) {
      backward_block(keys, queries);
    }
  }
  store_transposed(dq_transposed_, tokens_, dim_, dq);
}

// Everything that the queries of one block give to the keys of one block and back.
void Avx512Attention::backward_block(int64_t keys_begin, int64_t queries_begin) {
  int64_t keys = std::min(kBlock, tokens_ - keys_begin);
  for (int64_t key = 0; key < keys; key += kBackwardRows) {
    backward_tile(keys_begin, key, std::min(kBackwardRows, keys - key), queries_begin);
  }
  product({.rows = dim_,
           .columns = kBlock,
           .pairs = (keys + 1) / 2,
           .a = keys_transposed_ + keys_begin * dim_,
           .a_stride = kBlock,
           .b = d_score_pairs_,
           .b_columns = kBlock,
           .c = dq_transposed_ + queries_begin * dim_,
           .c_stride = kBlock,
           .accumulate = keys_begin > 0});
}

// Scores are transposed here, a row for each key: the sums over queries then need no transposition,
// and what belongs to a query lies along the vectors.
void Avx512Attention::backward_tile(int64_t keys_begin, int64_t key, int64_t rows,
                                    int64_t queries_begin) {
  const bool diagonal = keys_begin == queries_begin;
  // Queries before the tile's first key do not see it.
  const int64_t first = diagonal ? key / kLanes * kLanes : 0;
  auto scores = [&](HeadRows<const bf16> a, const bf16* b, float* c) {
    product({.rows = rows,
             .columns = kBlock - first,
             .pairs = dim_ / 2,
             .a = a.row(keys_begin + key),
             .a_stride = a.stride,
             .b = b + queries_begin * dim_ + first * 2,
             .b_columns = kBlock,
             .c = c + first,
             .c_stride = kBlock});
  };
  scores(k_, queries_by_dim_, scores_);
  scores(v_, d_outputs_by_dim_, d_probabilities_);

  __m512 factor = _mm512_set1_ps(scale_);
  for (int64_t row = 0; row < rows; row += 2) {
    bf16* pairs = d_score_pairs_ + (key + row) * kBlock;
    std::memset(static_cast<void*>(pairs), 0, static_cast<size_t>(first) * 2 * sizeof(bf16));
    for (int64_t i = first; i < kBlock; i += kLanes) {
      __m512 log_sum = _mm512_loadu_ps(log_sums_ + queries_begin + i);
      __m512 delta = _mm512_loadu_ps(deltas_ + queries_begin + i);
      __m512 p[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      __m512 ds[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int64_t half = 0; half < std::min<int64_t>(2, rows - row); ++half) {
        int64_t at = (row + half) * kBlock + i;
        // A query sees the keys up to its own.
        int64_t hidden = diagonal ? key + row + half - i : 0;
        auto seen = static_cast<__mmask16>(~((1u << std::clamp<int64_t>(hidden, 0, 16)) - 1u));
        __m512 score = _mm512_loadu_ps(scores_ + at);
        p[half] = _mm512_maskz_mov_ps(seen, exponential(_mm512_fmsub_ps(score, factor, log_sum)));
        __m512 dp = _mm512_sub_ps(_mm512_loadu_ps(d_probabilities_ + at), delta);
        ds[half] = _mm512_mul_ps(_mm512_mul_ps(p[half], factor), dp);
        store_bf16(probabilities_ + at, p[half]);
        ds[half] = _mm512_maskz_mov_ps(seen, ds[half]);
        store_bf16(d_scores_ + at, ds[half]);
      }
      store(pairs + i * 2, interleave_bf16(ds[0], ds[1]));
    }
  }
  auto add_to = [&](const bf16* a, const bf16* b, float* c) {
    product({.rows = rows,
             .columns = dim_,
             .pairs = (kBlock - first) / 2,
             .a = a + first,
             .a_stride = kBlock,
             .b = b + (queries_begin + first) * dim_,
             .b_columns = dim_,
             .c = c + (keys_begin + key) * dim_,
             .c_stride = dim_,
             .accumulate = true});
  };
  add_to(probabilities_, d_outputs_by_token_, dv_);
  add_to(d_scores_, queries_by_token_, dk_);
}

void Avx512Attention::finish_backward(HeadRows<bf16> dk, HeadRows<bf16> dv) {
  store_rows(dk_, tokens_, dim_, dk);
  store_rows(dv_, tokens_, dim_, dv);
}

#else

bool avx512_attention_runs(int64_t) { return false; }
Avx512Attention::Avx512Attention(int64_t, int64_t, float, std::byte*) { GNOMON_ASSERT(false); }
int64_t Avx512Attention::scratch_bytes(int64_t, int64_t) { return 0; }
void Avx512Attention::start_forward(HeadRows<const bf16>, HeadRows<const bf16>) {}
void Avx512Attention::forward(HeadRows<const bf16>, HeadRows<bf16>, float*) {}
void Avx512Attention::start_backward(HeadRows<const bf16>, HeadRows<const bf16>) {}
void Avx512Attention::backward(HeadRows<const bf16>, HeadRows<const bf16>, HeadRows<const bf16>,
                               const float*, HeadRows<bf16>) {}
void Avx512Attention::finish_backward(HeadRows<bf16>, HeadRows<bf16>) {}

#endif

}  // namespace gnomon::cpu
