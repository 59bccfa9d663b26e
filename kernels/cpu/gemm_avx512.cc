#include "kernels/cpu/gemm_avx512.h"

#include <algorithm>
#include <type_traits>

#include "base/errors.h"
#include "kernels/cpu/shares.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "kernels/cpu/avx512_tiles.h"
#define GNOMON_AVX512_GEMM 1
#endif

namespace gnomon::cpu {

#ifdef GNOMON_AVX512_GEMM

namespace {

constexpr int64_t kPanel = 64;    // columns of a panel of B, rows of a packed panel of A
constexpr int64_t kTileRows = 6;  // 24 sums, 4 columns of B and one element pair fit the registers
constexpr int64_t kPairsMax = 512;  // of a panel at a time: 128 KiB
constexpr int64_t kRowBlock = 32 * kTileRows;
constexpr int64_t kPackPairs = 64;  // a piece of packing work

int64_t panels_of(int64_t count) { return (count + kPanel - 1) / kPanel; }
int64_t pairs_of(int64_t k) { return (k + 1) / 2; }

// Pairs [begin, end) of a panel, [pair][kPanel][2], from the columns [first, first + count) of
// x[k, ·], with zeros behind an odd k and behind the columns.
void pack_columns(const bf16* x, int64_t stride, int64_t k, int64_t first, int64_t count,
                  int64_t begin, int64_t end, bf16* panel) {
  for (int64_t pair = begin; pair < end; ++pair) {
    const bf16* even_row = x + 2 * pair * stride + first;
    const bool has_odd = 2 * pair + 1 < k;
    for (int64_t column = 0; column < kPanel; column += 2 * kLanes) {
      int64_t there = std::clamp<int64_t>(count - column, 0, 2 * kLanes);
      auto mask = static_cast<__mmask32>((uint64_t{1} << there) - 1);
      __m512i even = _mm512_maskz_loadu_epi16(mask, even_row + column);
      __m512i odd =
          _mm512_maskz_loadu_epi16(has_odd ? mask : 0, even_row + (has_odd ? stride : 0) + column);
      bf16* to = panel + (pair * kPanel + column) * 2;
      store(to, interleave_low(even, odd));
      store(to + 2 * kLanes, interleave_high(even, odd));
    }
  }
}

// The same from the rows [first, first + count) of x[·, k]; k is even.
void pack_rows(const bf16* x, int64_t stride, int64_t k, int64_t first, int64_t count,
               int64_t begin, int64_t end, bf16* panel) {
  for (int64_t column = 0; column < kPanel; column += kLanes) {
    for (int64_t pair = begin; pair < end; pair += kLanes) {
      int64_t there = std::min(kLanes, k / 2 - pair);
      auto mask = static_cast<__mmask16>((1u << there) - 1);
      Square square;
      for (int64_t i = 0; i < kLanes; ++i) {
        square.rows[i] =
            column + i < count
                ? _mm512_maskz_loadu_epi32(mask, x + (first + column + i) * stride + 2 * pair)
                : _mm512_setzero_si512();
      }
      square.transpose();
      for (int64_t i = 0; i < std::min(kLanes, end - pair); ++i) {
        store(panel + ((pair + i) * kPanel + column) * 2, square.rows[i]);
      }
    }
  }
}

// Rows of A as a tile reads them: pair p of row r lies at data + r·row + p·pair.
struct LeftRows {
  const bf16* data;
  int64_t row;
  int64_t pair;
};

template <class Out>
struct Result {
  Out* data;
  int64_t stride;
  int64_t columns;      // of the panel that exist
  const float* alphas;  // one, or one for each column
  bool each_column;
  bool adds;
};

inline __m512 load_some(const float* from, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, from);
}
inline void store_some(float* to, __mmask16 mask, __m512 value) {
  _mm512_mask_storeu_ps(to, mask, value);
}
inline void store_some(bf16* to, __mmask16 mask, __m512 value) {
  _mm256_mask_storeu_epi16(to, mask, std::bit_cast<__m256i>(_mm512_cvtneps_pbh(value)));
}

template <int kRows, int kVectors, class Out>
void gemm_tile(const LeftRows& a, const bf16* panel, int64_t pairs, const Result<Out>& c) {
  __m512 sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v) sums[row][v] = _mm512_setzero_ps();
  }
  const bf16* left = a.data;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m512i b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = load(panel + v * 2 * kLanes);
    for (int row = 0; row < kRows; ++row) {
      int32_t two = 0;
      std::memcpy(&two, left + row * a.row, sizeof(two));
      __m512i value = _mm512_set1_epi32(two);
      for (int v = 0; v < kVectors; ++v) sums[row][v] = add_products(sums[row][v], value, b[v]);
    }
    panel += 2 * kPanel;
    left += a.pair;
  }
  for (int v = 0; v < kVectors; ++v) {
    int64_t there = std::min(kLanes, c.columns - v * kLanes);
    auto mask = static_cast<__mmask16>((1u << there) - 1);
    __m512 alpha =
        c.each_column ? load_some(c.alphas + v * kLanes, mask) : _mm512_set1_ps(*c.alphas);
    for (int row = 0; row < kRows; ++row) {
      Out* to = c.data + row * c.stride + v * kLanes;
      __m512 value = _mm512_mul_ps(alpha, sums[row][v]);
      if constexpr (std::is_same_v<Out, float>) {
        if (c.adds) value = _mm512_add_ps(value, load_some(to, mask));
      }
      store_some(to, mask, value);
    }
  }
}

template <int kRows, class Out>
void gemm_rows(const LeftRows& a, const bf16* panel, int64_t pairs, const Result<Out>& c) {
  switch ((c.columns + kLanes - 1) / kLanes) {
    case 1:
      return gemm_tile<kRows, 1>(a, panel, pairs, c);
    case 2:
      return gemm_tile<kRows, 2>(a, panel, pairs, c);
    case 3:
      return gemm_tile<kRows, 3>(a, panel, pairs, c);
    default:
      return gemm_tile<kRows, 4>(a, panel, pairs, c);
  }
}

template <class Out>
void panel_product(LeftRows a, int64_t rows, const bf16* panel, int64_t pairs, Result<Out> c) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    gemm_rows<kTileRows>(a, panel, pairs, c);
    a.data += kTileRows * a.row;
    c.data += kTileRows * c.stride;
  }
  switch (rows) {
    case 5:
      return gemm_rows<5>(a, panel, pairs, c);
    case 4:
      return gemm_rows<4>(a, panel, pairs, c);
    case 3:
      return gemm_rows<3>(a, panel, pairs, c);
    case 2:
      return gemm_rows<2>(a, panel, pairs, c);
    case 1:
      return gemm_rows<1>(a, panel, pairs, c);
    default:
      return;
  }
}

// One call's matrices and what each thread does with them.
template <class Out>
struct Job {
  GemmShape shape;
  int64_t stride_a, stride_b, stride_c;
  std::span<const float> alphas;
  const bf16* a;
  const bf16* b;
  Out* c;
  bool accumulate;
  bf16* panels;    // [panels of n][pairs][kPanel][2]
  std::byte* own;  // of the thread: a packed panel of A, and sums
  int64_t pairs;

  void pack(int64_t begin, int64_t end) const;
  void rows(int64_t begin, int64_t end) const;
  void panel(LeftRows left, int64_t row, int64_t count, int64_t index, float* sums) const;
};

template <class Out>
void Job<Out>::pack(int64_t begin, int64_t end) const {
  const int64_t pieces = (pairs + kPackPairs - 1) / kPackPairs;
  for (int64_t unit = begin; unit < end; ++unit) {
    int64_t first = unit / pieces * kPanel;
    int64_t pair = unit % pieces * kPackPairs;
    int64_t last = std::min(pair + kPackPairs, pairs);
    auto pack_some = shape.transpose_b ? pack_rows : pack_columns;
    pack_some(b, stride_b, shape.k, first, std::min(kPanel, shape.n - first), pair, last,
              panels + unit / pieces * pairs * kPanel * 2);
  }
}

template <class Out>
void Job<Out>::rows(int64_t begin, int64_t end) const {
  auto* packed = reinterpret_cast<bf16*>(own);
  auto* sums = reinterpret_cast<float*>(own + (shape.transpose_a ? pairs * kPanel * 4 : 0));
  const int64_t block = shape.transpose_a ? kPanel : kRowBlock;
  for (int64_t row = begin; row < end; row += block) {
    int64_t count = std::min(block, end - row);
    LeftRows left{a + row * stride_a, stride_a, 2};
    if (shape.transpose_a) {
      pack_columns(a, stride_a, shape.k, row, count, 0, pairs, packed);
      left = {packed, 2, 2 * kPanel};
    }
    for (int64_t index = 0; index < panels_of(shape.n); ++index) {
      panel(left, row, count, index, sums);
    }
  }
}

template <class Out>
void Job<Out>::panel(LeftRows left, int64_t row, int64_t count, int64_t index, float* sums) const {
  const int64_t column = index * kPanel;
  const bf16* right = panels + index * pairs * kPanel * 2;
  const bool each_column = alphas.size() > 1;
  Result<Out> result{.data = c + row * stride_c + column,
                     .stride = stride_c,
                     .columns = std::min(kPanel, shape.n - column),
                     .alphas = alphas.data() + (each_column ? column : 0),
                     .each_column = each_column,
                     .adds = accumulate};
  if (pairs <= kPairsMax) return panel_product(left, count, right, pairs, result);
  if constexpr (std::is_same_v<Out, float>) {
    for (int64_t pair = 0; pair < pairs; pair += kPairsMax) {
      result.adds = accumulate || pair > 0;
      panel_product(left, count, right + pair * kPanel * 2, std::min(kPairsMax, pairs - pair),
                    result);
      left.data += kPairsMax * left.pair;
    }
    return;
  }
  const float one = 1.0f;
  Result<float> partial{.data = sums,
                        .stride = kPanel,
                        .columns = result.columns,
                        .alphas = &one,
                        .each_column = false,
                        .adds = false};
  for (int64_t pair = 0; pair < pairs; pair += kPairsMax) {
    partial.adds = pair > 0;
    panel_product(left, count, right + pair * kPanel * 2, std::min(kPairsMax, pairs - pair),
                  partial);
    left.data += kPairsMax * left.pair;
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t v = 0; v < result.columns; v += kLanes) {
      auto mask = static_cast<__mmask16>((1u << std::min(kLanes, result.columns - v)) - 1);
      __m512 alpha =
          each_column ? load_some(result.alphas + v, mask) : _mm512_set1_ps(*result.alphas);
      __m512 value = _mm512_mul_ps(alpha, load_some(sums + i * kPanel + v, mask));
      store_some(result.data + i * stride_c + v, mask, value);
    }
  }
}

int64_t panels_bytes(const GemmShape& shape) {
  return panels_of(shape.n) * pairs_of(shape.k) * kPanel * 4;
}
int64_t own_bytes(const GemmShape& shape) {
  return (shape.transpose_a ? pairs_of(shape.k) * kPanel * 4 : 0) +
         kRowBlock * kPanel * static_cast<int64_t>(sizeof(float));
}

}  // namespace

bool avx512_gemm_runs(const GemmShape& shape) {
  const bool along_rows = !shape.transpose_a || shape.transpose_b;
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && (!along_rows || shape.k % 2 == 0);
}

int64_t avx512_gemm_scratch_bytes(int threads, const GemmShape& shape) {
  return panels_bytes(shape) + threads * own_bytes(shape);
}

template <class Out>
void avx512_gemm(int threads, const GemmShape& shape, std::span<const float> alphas, const bf16* a,
                 const bf16* b, Out* c, bool accumulate, std::byte* scratch) {
  const Job<Out> job{.shape = shape,
                     .stride_a = row_stride(shape.stride_a, shape.transpose_a ? shape.m : shape.k),
                     .stride_b = row_stride(shape.stride_b, shape.transpose_b ? shape.k : shape.n),
                     .stride_c = row_stride(shape.stride_c, shape.n),
                     .alphas = alphas,
                     .a = a,
                     .b = b,
                     .c = c,
                     .accumulate = accumulate,
                     .panels = reinterpret_cast<bf16*>(scratch),
                     .own = nullptr,
                     .pairs = pairs_of(shape.k)};
  const int64_t pieces = (job.pairs + kPackPairs - 1) / kPackPairs;
  const int64_t units = panels_of(shape.n) * pieces;
#pragma omp parallel num_threads(threads)
  {
    // The system may give fewer threads: the parts are for `threads` all the same.
#pragma omp for schedule(static)
    for (int thread = 0; thread < threads; ++thread) {
      Range share = share_of(units, thread, threads);
      job.pack(share.begin, share.end);
    }
#pragma omp for schedule(static)
    for (int thread = 0; thread < threads; ++thread) {
      Job<Out> own = job;
      own.own = scratch + panels_bytes(shape) + thread * own_bytes(shape);
      Range share = share_of(shape.m, thread, threads, kTileRows);
      own.rows(share.begin, share.end);
    }
  }
}

#else

bool avx512_gemm_runs(const GemmShape&) { return false; }
int64_t avx512_gemm_scratch_bytes(int, const GemmShape&) { return 0; }
template <class Out>
void avx512_gemm(int, const GemmShape&, std::span<const float>, const bf16*, const bf16*, Out*,
                 bool, std::byte*) {
  GNOMON_ASSERT(false);
}

#endif

template void avx512_gemm(int, const GemmShape&, std::span<const float>, const bf16*, const bf16*,
                          bf16*, bool, std::byte*);
template void avx512_gemm(int, const GemmShape&, std::span<const float>, const bf16*, const bf16*,
                          float*, bool, std::byte*);

}  // namespace gnomon::cpu
