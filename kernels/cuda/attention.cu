#include "base/errors.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernel.h"

namespace gnomon::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRowsOfWarp = 4;
constexpr int kRows = kWarps * kRowsOfWarp;  // that a block keeps
constexpr int kColumns = kWarp;              // of a tile, one for each lane
static_assert(kRows == 32);

// A matrix of heads: row `token` of head `head` in sequence `sequence`.
struct Heads {
  const bf16* data;
  int64_t stride;  // between tokens
  int64_t tokens;
  int head_dim;
  __device__ const bf16* row(int64_t sequence, int64_t head, int64_t token) const {
    return data + (sequence * tokens + token) * stride + head * head_dim;
  }
};

struct Problem {
  Heads q, k, v, o, d_o;
  int64_t tokens;
  int heads, kv_heads, head_dim;
  float scale;   // 1/√head_dim
  float* lse;    // [sequences, heads, tokens]: log Σ exp
  float* delta;  // the same: Σ o·d_o
  __device__ int64_t statistic(int64_t sequence, int64_t head, int64_t token) const {
    return (sequence * heads + head) * tokens + token;
  }
};

// 32 rows of a head in shared memory, two BF16 values a word; rows are an odd number of words
// apart, so that lanes that read one column each meet different banks, and so do lanes along a row.
struct Tile {
  uint32_t* words;
  int pitch;

  __device__ void load(const Heads& from, int64_t sequence, int64_t head, int64_t first) const {
    const int half = from.head_dim / 2;
    for (int i = static_cast<int>(threadIdx.x); i < kColumns * half;
         i += static_cast<int>(blockDim.x)) {
      const int row = i / half, word = i % half;
      const int64_t token = first + row;
      uint32_t value = 0;
      if (token < from.tokens) {
        value = reinterpret_cast<const uint32_t*>(from.row(sequence, head, token))[word];
      }
      words[row * pitch + word] = value;
    }
  }
  __device__ uint32_t at(int row, int word) const { return words[row * pitch + word]; }
};

__device__ float low_of(uint32_t word) { return float_of(word << 16); }
__device__ float high_of(uint32_t word) { return float_of(word & 0xFFFF0000u); }

__host__ __device__ constexpr int pitch_of(int head_dim) { return head_dim / 2 | 1; }

// x_r · y_column for the warp's rows of one tile and the lane's row of another.
__device__ void dots(const Tile& rows, int first_row, const Tile& columns, int half,
                     float (&result)[kRowsOfWarp]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int r = 0; r < kRowsOfWarp; ++r) result[r] = 0;
  for (int word = 0; word < half; ++word) {
    const uint32_t y = columns.at(lane, word);
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const uint32_t x = rows.at(first_row + r, word);
      result[r] += low_of(x) * low_of(y) + high_of(x) * high_of(y);
    }
  }
}

// Sums of rows of a tile: each lane has words lane, lane + 32, ... of the warp's rows.
template <int kWords>
struct Sums {
  float low[kRowsOfWarp][kWords] = {};
  float high[kRowsOfWarp][kWords] = {};

  // += Σ over the tile's rows of weight·row, where lane j holds the weights of row j.
  __device__ void add(const float (&weights)[kRowsOfWarp], const Tile& tile, int half) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int j = 0; j < kColumns; ++j) {
      float weight[kRowsOfWarp];
      for (int r = 0; r < kRowsOfWarp; ++r) weight[r] = __shfl_sync(kAllLanes, weights[r], j);
      for (int k = 0; k < kWords; ++k) {
        const int word = lane + k * kWarp;
        const uint32_t value = word < half ? tile.at(j, word) : 0;
        for (int r = 0; r < kRowsOfWarp; ++r) {
          low[r][k] += weight[r] * low_of(value);
          high[r][k] += weight[r] * high_of(value);
        }
      }
    }
  }
  __device__ void scale(int r, float factor) {
    for (int k = 0; k < kWords; ++k) {
      low[r][k] *= factor;
      high[r][k] *= factor;
    }
  }
  __device__ void store(int r, bf16* row, int half) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int k = 0; k < kWords; ++k) {
      const int word = lane + k * kWarp;
      if (word >= half) continue;
      reinterpret_cast<uint32_t*>(row)[word] = rounded_pair(low[r][k], high[r][k]);
    }
  }
};

struct TilesOf {
  __device__ explicit TilesOf(int head_dim)
      : pitch(pitch_of(head_dim)), memory(dynamic_shared<uint32_t>()) {}
  __device__ Tile operator[](int i) const { return {memory + i * kColumns * pitch, pitch}; }
  int pitch;
  uint32_t* memory;
};

__device__ int own_first_row() { return static_cast<int>(threadIdx.x) / kWarp * kRowsOfWarp; }

template <int kWords>
__global__ void forward_kernel(Problem p, bf16* o) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, half = p.head_dim / 2;
  const int64_t first = int64_t{blockIdx.x} * kRows, head = blockIdx.y, sequence = blockIdx.z;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const TilesOf tiles(p.head_dim);
  const Tile queries = tiles[0], keys = tiles[1], values = tiles[2];
  queries.load(p.q, sequence, head, first);
  const int own = own_first_row();
  float largest[kRowsOfWarp], sum[kRowsOfWarp] = {};
  for (int r = 0; r < kRowsOfWarp; ++r) largest[r] = -HUGE_VALF;
  Sums<kWords> result;
  for (int64_t key0 = 0; key0 < first + kRows && key0 < p.tokens; key0 += kColumns) {
    __syncthreads();  // the last tile has been read by all
    keys.load(p.k, sequence, kv_head, key0);
    values.load(p.v, sequence, kv_head, key0);
    __syncthreads();
    float weights[kRowsOfWarp];
    dots(queries, own, keys, half, weights);
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const bool seen = key0 + lane <= first + own + r;
      const float score = seen ? weights[r] * p.scale : -HUGE_VALF;
      const float most = fmaxf(largest[r], warp_reduce(score, Largest()));
      // No key of a tile may be seen; the first key of all is seen by every row.
      weights[r] = seen ? expf(score - most) : 0.0f;
      const float kept = largest[r] == most ? 1.0f : expf(largest[r] - most);
      sum[r] = sum[r] * kept + warp_reduce(weights[r], Add());
      result.scale(r, kept);
      largest[r] = most;
    }
    result.add(weights, values, half);
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int64_t token = first + own + r;
    if (token >= p.tokens) continue;
    result.scale(r, quotient(1.0f, sum[r]));
    result.store(r, o + (p.o.row(sequence, head, token) - p.o.data), half);
    if (lane == 0) p.lse[p.statistic(sequence, head, token)] = largest[r] + logf(sum[r]);
  }
}

// delta = Σ o·d_o, a warp for each query and head.
__global__ void delta_kernel(Problem p, int64_t count) {
  const int64_t at = global_thread() / kWarp;
  if (at >= count) return;  // whole warps
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = at % p.tokens, head = at / p.tokens % p.heads;
  const int64_t sequence = at / p.tokens / p.heads;
  const auto* o = reinterpret_cast<const uint32_t*>(p.o.row(sequence, head, token));
  const auto* d_o = reinterpret_cast<const uint32_t*>(p.d_o.row(sequence, head, token));
  float sum = 0;
  for (int word = lane; word < p.head_dim / 2; word += kWarp) {
    sum += low_of(o[word]) * low_of(d_o[word]) + high_of(o[word]) * high_of(d_o[word]);
  }
  sum = warp_reduce(sum, Add());
  if (lane == 0) p.delta[at] = sum;
}

// With P = exp(s − lse) and dS = P·(d_o·v − delta)/√head_dim: dq = dS·k. A block keeps queries.
template <int kWords>
__global__ void backward_queries_kernel(Problem p, bf16* dq, int64_t stride_dq) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, half = p.head_dim / 2;
  const int64_t first = int64_t{blockIdx.x} * kRows, head = blockIdx.y, sequence = blockIdx.z;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const TilesOf tiles(p.head_dim);
  const Tile queries = tiles[0], gradients = tiles[1], keys = tiles[2], values = tiles[3];
  queries.load(p.q, sequence, head, first);
  gradients.load(p.d_o, sequence, head, first);
  const int own = own_first_row();
  float lse[kRowsOfWarp] = {}, delta[kRowsOfWarp] = {};
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (first + own + r >= p.tokens) continue;
    lse[r] = p.lse[p.statistic(sequence, head, first + own + r)];
    delta[r] = p.delta[p.statistic(sequence, head, first + own + r)];
  }
  Sums<kWords> result;
  for (int64_t key0 = 0; key0 < first + kRows && key0 < p.tokens; key0 += kColumns) {
    __syncthreads();
    keys.load(p.k, sequence, kv_head, key0);
    values.load(p.v, sequence, kv_head, key0);
    __syncthreads();
    float scores[kRowsOfWarp], weights[kRowsOfWarp];
    dots(queries, own, keys, half, scores);
    dots(gradients, own, values, half, weights);
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const bool seen = key0 + lane <= first + own + r && first + own + r < p.tokens;
      const float share = seen ? expf(scores[r] * p.scale - lse[r]) : 0.0f;
      weights[r] = seen ? share * (weights[r] - delta[r]) * p.scale : 0.0f;
    }
    result.add(weights, keys, half);
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int64_t token = first + own + r;
    if (token >= p.tokens) continue;
    result.store(r, dq + (sequence * p.tokens + token) * stride_dq + head * p.head_dim, half);
  }
}

// dv = Pᵀ·d_o and dk = dSᵀ·q, over all heads that share the keys. A block keeps keys.
template <int kWords>
__global__ void backward_keys_kernel(Problem p, bf16* dk, bf16* dv, int64_t stride_dkv) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, half = p.head_dim / 2;
  const int64_t first = int64_t{blockIdx.x} * kRows, kv_head = blockIdx.y, sequence = blockIdx.z;
  const TilesOf tiles(p.head_dim);
  const Tile keys = tiles[0], values = tiles[1], queries = tiles[2], gradients = tiles[3];
  keys.load(p.k, sequence, kv_head, first);
  values.load(p.v, sequence, kv_head, first);
  const int own = own_first_row();
  Sums<kWords> of_keys, of_values;
  const int64_t shared_by = p.heads / p.kv_heads;
  for (int64_t head = kv_head * shared_by; head < (kv_head + 1) * shared_by; ++head) {
    for (int64_t query0 = first; query0 < p.tokens; query0 += kColumns) {
      __syncthreads();
      queries.load(p.q, sequence, head, query0);
      gradients.load(p.d_o, sequence, head, query0);
      __syncthreads();
      const int64_t query = query0 + lane;
      float lse = 0, delta = 0;
      if (query < p.tokens) {
        lse = p.lse[p.statistic(sequence, head, query)];
        delta = p.delta[p.statistic(sequence, head, query)];
      }
      float shares[kRowsOfWarp], weights[kRowsOfWarp];
      dots(keys, own, queries, half, shares);
      dots(values, own, gradients, half, weights);
      for (int r = 0; r < kRowsOfWarp; ++r) {
        const bool seen = first + own + r <= query && query < p.tokens;
        shares[r] = seen ? expf(shares[r] * p.scale - lse) : 0.0f;
        weights[r] = seen ? shares[r] * (weights[r] - delta) * p.scale : 0.0f;
      }
      of_values.add(shares, gradients, half);
      of_keys.add(weights, queries, half);
    }
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int64_t token = first + own + r;
    if (token >= p.tokens) continue;
    const int64_t at = (sequence * p.tokens + token) * stride_dkv + kv_head * p.head_dim;
    of_keys.store(r, dk + at, half);
    of_values.store(r, dv + at, half);
  }
}

Problem problem_of(const AttentionShape& s, const bf16* q, const bf16* k, const bf16* v,
                   const bf16* o, const bf16* d_o, const std::byte* saved, std::byte* scratch) {
  GNOMON_ASSERT(s.head_dim > 0 && s.head_dim % 8 == 0 && s.head_dim <= kHeadDimMax);
  GNOMON_ASSERT(s.heads % s.kv_heads == 0 && s.stride_q > 0 && s.stride_kv > 0);
  const int64_t dense = int64_t{s.heads} * s.head_dim;
  const auto heads = [&](const bf16* data, int64_t stride) {
    return Heads{data, stride, s.tokens, s.head_dim};
  };
  return {.q = heads(q, s.stride_q),
          .k = heads(k, s.stride_kv),
          .v = heads(v, s.stride_kv),
          .o = heads(o, dense),
          .d_o = heads(d_o, dense),
          .tokens = s.tokens,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)),
          .lse = reinterpret_cast<float*>(const_cast<std::byte*>(saved)),
          .delta = reinterpret_cast<float*>(scratch)};
}

template <int kWords>
struct WordsOfLane {
  static constexpr int value = kWords;
};
template <class Go>
void by_head_dim(int head_dim, Go go) {
  if (head_dim <= 64) return go(WordsOfLane<1>());
  if (head_dim <= 128) return go(WordsOfLane<2>());
  go(WordsOfLane<4>());
}

Grid grid_of(const AttentionShape& s, int heads, int tiles) {
  return {.blocks_x = blocks_for(s.tokens, kRows),
          .blocks_y = heads,
          .blocks_z = s.sequences,
          .threads = kWarps * kWarp,
          .shared_bytes = int64_t{tiles} * kColumns * pitch_of(s.head_dim) *
                          static_cast<int64_t>(sizeof(uint32_t))};
}

int64_t statistics_bytes(const AttentionShape& s) {
  return s.sequences * s.heads * s.tokens * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t attention_saved_bytes(const AttentionShape& shape) { return statistics_bytes(shape); }
int64_t attention_scratch_bytes(const AttentionShape& shape) { return statistics_bytes(shape); }

void attention(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
               std::byte* saved, Stream stream) {
  const Problem p = problem_of(shape, q, k, v, o, nullptr, saved, nullptr);
  by_head_dim(shape.head_dim, [&](auto words) {
    launch_with_shared("attention", forward_kernel<decltype(words)::value>,
                       grid_of(shape, shape.heads, 3), stream, p, o);
  });
}

void attention_backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                        const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                        const std::byte* saved, std::byte* scratch, Stream stream) {
  GNOMON_ASSERT(shape.stride_dq > 0 && shape.stride_dkv > 0);
  const Problem p = problem_of(shape, q, k, v, o, d_o, saved, scratch);
  const int64_t queries = shape.sequences * shape.heads * shape.tokens;
  launch("attention_delta", delta_kernel,
         {.blocks_x = blocks_for(queries, kWarps), .threads = kWarps * kWarp}, stream, p, queries);
  by_head_dim(shape.head_dim, [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    launch_with_shared("attention_queries", backward_queries_kernel<kWords>,
                       grid_of(shape, shape.heads, 4), stream, p, dq, shape.stride_dq);
    launch_with_shared("attention_keys", backward_keys_kernel<kWords>,
                       grid_of(shape, shape.kv_heads, 4), stream, p, dk, dv, shape.stride_dkv);
  });
}

}  // namespace gnomon::cuda
