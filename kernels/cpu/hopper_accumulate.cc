#include "kernels/cpu/hopper_accumulate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <type_traits>

#include "base/errors.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kRows = 64;     // of a tile of C
constexpr int64_t kColumns = 32;  // a whole number of vectors
constexpr int64_t kChunk =
    256;  // terms that are unpacked at a time, a multiple of kTensorCoreTermsMax
constexpr int16_t kZeroExponent = -126;
// No sum that starts at zero has bits below: a product of two FP8 numbers has an exponent of at
// least -28, and at most 23 bits behind it are kept.
constexpr int kExponentMin = -60;

// As wide as the processor's registers: wider ones do not return from a function (-Wpsabi).
#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif
using Floats = float __attribute__((vector_size(kVectorBytes)));
using Ints = int32_t __attribute__((vector_size(kVectorBytes)));
constexpr int64_t kLanes = kVectorBytes / 4;
constexpr int64_t kVectors = kColumns / kLanes;

// One operand, asked by (index of its row or column of C, index of what is summed over).
class Operand {
 public:
  Operand(const ScaledOperand& operand, int64_t outer, int64_t inner, bool inner_is_rows)
      : operand_(operand),
        outer_stride_(inner_is_rows ? 1 : inner),
        inner_stride_(inner_is_rows ? outer : 1),
        grid_(tile_grid(operand.quantizer, inner_is_rows ? inner : outer,
                        inner_is_rows ? outer : inner)),
        inner_is_rows_(inner_is_rows),
        smallest_exponent_(static_cast<int16_t>(
            std::ilogb(format_info(operand.quantizer.format).smallest_normal))) {}

  float value(int64_t outer, int64_t inner) const {
    return to_float(operand_.values[outer * outer_stride_ + inner * inner_stride_]);
  }
  float inverse_scale(int64_t outer, int64_t inner) const {
    const int64_t row = (inner_is_rows_ ? inner : outer) / grid_.tile.rows;
    const int64_t column = (inner_is_rows_ ? outer : inner) / grid_.tile.columns;
    return 1.0f / operand_.scales[row * grid_.columns + column];
  }
  // The first index behind `inner` with another scale.
  int64_t scale_end(int64_t inner) const {
    const int64_t length = inner_is_rows_ ? grid_.tile.rows : grid_.tile.columns;
    return (inner / length + 1) * length;
  }
  int16_t exponent(float value) const {
    if (value == 0.0f) return kZeroExponent;
    const int bits = static_cast<int>(std::bit_cast<uint32_t>(value) >> 23 & 0xFFu);
    return std::max(static_cast<int16_t>(bits - 127), smallest_exponent_);
  }
  Format format() const { return operand_.quantizer.format; }

 private:
  const ScaledOperand& operand_;
  int64_t outer_stride_, inner_stride_;
  TileGrid grid_;
  bool inner_is_rows_;
  int16_t smallest_exponent_;
};

// A tile of C and the terms at hand, unpacked.
struct alignas(64) Workspace {
  float total[kRows][kColumns];
  float partial[kRows][kColumns];
  float a[kRows][kChunk];
  float b[kChunk][kColumns];
  int16_t b_exponents[kChunk][kColumns];
  int16_t a_exponents[kRows][kChunk];
};

struct Tile {
  int64_t row, rows, column, columns;
};

// Terms [begin, end) of the tile's rows and columns, zeros behind up to a multiple of
// `instruction`. False when one is not finite.
bool unpack(const Operand& a, const Operand& b, const Tile& tile, int64_t begin, int64_t end,
            int64_t instruction, Workspace& w) {
  const int64_t filled = (end - begin + instruction - 1) / instruction * instruction;
  bool finite = true;
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t t = 0; t < filled; ++t) {
      const float value = begin + t < end ? a.value(tile.row + i, begin + t) : 0.0f;
      finite = finite && std::isfinite(value);
      w.a[i][t] = value;
      w.a_exponents[i][t] = a.exponent(value);
    }
  }
  for (int64_t t = 0; t < filled; ++t) {
    for (int64_t j = 0; j < kColumns; ++j) {
      const bool there = begin + t < end && j < tile.columns;
      const float value = there ? b.value(tile.column + j, begin + t) : 0.0f;
      finite = finite && std::isfinite(value);
      w.b[t][j] = value;
      w.b_exponents[t][j] = b.exponent(value);
    }
  }
  return finite;
}

void add_fp32(const Tile& tile, int64_t terms, Workspace& w) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    Floats sums[kVectors];
    std::memcpy(sums, w.partial[i], sizeof(sums));
    for (int64_t t = 0; t < terms; ++t) {
      for (int64_t v = 0; v < kVectors; ++v) {
        // A product of two FP8 numbers is exact in FP32: fused or not is the same.
        sums[v] += w.a[i][t] * *reinterpret_cast<const Floats*>(&w.b[t][v * kLanes]);
      }
    }
    std::memcpy(w.partial[i], sums, sizeof(sums));
  }
}

// The largest exponents of a row's products over one instruction, by column.
template <int kTerms>
void largest_exponents(const int16_t* a, const int16_t (*b)[kColumns], int16_t* largest) {
  std::fill(largest, largest + kColumns, static_cast<int16_t>(kExponentMin));
  for (int64_t t = 0; t < kTerms; ++t) {
#pragma omp simd
    for (int64_t j = 0; j < kColumns; ++j) {
      const auto exponent = static_cast<int16_t>(a[t] + b[t][j]);
      largest[j] = exponent > largest[j] ? exponent : largest[j];
    }
  }
}

// True when a whole instruction's sum, in units of its last bit kept, stays below 2^24:
// significands of products are at most 3.52, that of c is below 2.
constexpr bool sums_fit_fp32(int terms, int fraction_bits) {
  return terms * 3.52 + 2 <= static_cast<double>(1 << (24 - fraction_bits));
}
static_assert(kTensorCoreTermsMax * 3.52 + 2 <= (1 << (31 - kTensorCoreBitsMax)));  // fits Ints

// The whole numbers `total`, cut off to a leading bit and `bits` more.
template <bool kWide>
Floats cut_off(Ints total, int bits) {
  if constexpr (kWide) {
    using Doubles = double __attribute__((vector_size(2 * kVectorBytes)));
    using Longs = int64_t __attribute__((vector_size(2 * kVectorBytes)));
    const Doubles sum = __builtin_convertvector(total, Doubles);
    const Longs kept = (Longs)sum & ~((int64_t{1} << (52 - bits)) - 1);
    return __builtin_convertvector((Doubles)kept, Floats);
  } else {
    const Floats sum = __builtin_convertvector(total, Floats);
    return (Floats)((Ints)sum & ~((1 << (23 - bits)) - 1));
  }
}

// hopper_sum() for finite operands and sums that started at zero, a vector of columns at a time.
template <int kTerms, bool kWide>
void add_instruction(const TensorCoreSum& rule, const float* a, const int16_t* a_exponents,
                     const float (*b)[kColumns], const int16_t (*b_exponents)[kColumns],
                     float* sums) {
  int16_t product_exponents[kColumns];
  largest_exponents<kTerms>(a_exponents, b_exponents, product_exponents);
  for (int64_t first = 0; first < kColumns; first += kLanes) {
    Floats c;
    std::memcpy(&c, sums + first, sizeof(c));
    Ints exponents;
    for (int64_t lane = 0; lane < kLanes; ++lane) exponents[lane] = product_exponents[first + lane];
    const Ints c_exponents = ((Ints)c >> 23 & 0xFF) - 127;
    exponents = c_exponents > exponents ? c_exponents : exponents;
    const Ints up = (127 + rule.fraction_bits - exponents) << 23;
    const Ints down = (127 - rule.fraction_bits + exponents) << 23;
    const Floats factor = (Floats)up;
    Ints total = __builtin_convertvector(c * factor, Ints);
    for (int64_t t = 0; t < kTerms; ++t) {
      const Floats products = a[t] * *reinterpret_cast<const Floats*>(&b[t][first]);
      total += __builtin_convertvector(products * factor, Ints);
    }
    const Floats sum = cut_off<kWide>(total, rule.result_bits) * (Floats)down;
    std::memcpy(sums + first, &sum, sizeof(sum));
  }
}

template <int kTerms, bool kWide>
void add_instructions(const TensorCoreSum& rule, const Tile& tile, int64_t terms, Workspace& w) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t t = 0; t < terms; t += kTerms) {
      add_instruction<kTerms, kWide>(rule, &w.a[i][t], &w.a_exponents[i][t], &w.b[t],
                                     &w.b_exponents[t], w.partial[i]);
    }
  }
}

template <int kTerms>
void add_hopper_of(const TensorCoreSum& rule, const Tile& tile, int64_t terms, Workspace& w) {
  if (sums_fit_fp32(kTerms, rule.fraction_bits)) {
    add_instructions<kTerms, false>(rule, tile, terms, w);
  } else {
    add_instructions<kTerms, true>(rule, tile, terms, w);
  }
}

void add_hopper(const TensorCoreSum& rule, const Tile& tile, int64_t terms, Workspace& w) {
  if (rule.terms == 16) {
    add_hopper_of<16>(rule, tile, terms, w);
  } else if (rule.terms == 32) {
    add_hopper_of<32>(rule, tile, terms, w);
  } else {
    add_hopper_of<64>(rule, tile, terms, w);
  }
}

// The same for operands with NaN or infinities among them, and sums that have become such.
void add_hopper_slowly(const TensorCoreSum& rule, const Tile& tile, int64_t terms, Format format_a,
                       Format format_b, Workspace& w) {
  float b[kTensorCoreTermsMax];
  const auto instruction = static_cast<size_t>(rule.terms);
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < tile.columns; ++j) {
      for (int64_t t = 0; t < terms; t += rule.terms) {
        for (int64_t k = 0; k < rule.terms; ++k) b[k] = w.b[t + k][j];
        w.partial[i][j] = hopper_sum(w.partial[i][j], format_a, {&w.a[i][t], instruction}, format_b,
                                     {b, instruction}, rule);
      }
    }
  }
}

void add_to_total(const Operand& a, const Operand& b, const Tile& tile, int64_t begin,
                  Workspace& w) {
  float b_inverse[kColumns] = {};
  for (int64_t j = 0; j < tile.columns; ++j) {
    b_inverse[j] = b.inverse_scale(tile.column + j, begin);
  }
  for (int64_t i = 0; i < tile.rows; ++i) {
    const float a_inverse = a.inverse_scale(tile.row + i, begin);
    for (int64_t j = 0; j < kColumns; ++j) {
      w.total[i][j] = std::fma(w.partial[i][j], a_inverse * b_inverse[j], w.total[i][j]);
    }
  }
}

void multiply_tile(const Operand& a, const Operand& b, const Tile& tile, int64_t k,
                   const Accumulation& accumulation, Workspace& w) {
  std::memset(w.total, 0, sizeof(w.total));
  int64_t end = 0;
  for (int64_t begin = 0; begin < k; begin = end) {
    end = std::min({k, a.scale_end(begin), b.scale_end(begin)});
    if (accumulation.hopper && accumulation.promote_every > 0) {
      const int64_t every = accumulation.promote_every;
      end = std::min(end, (begin / every + 1) * every);
    }
    std::memset(w.partial, 0, sizeof(w.partial));
    bool finite = true;
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t terms = std::min(kChunk, end - at);
      finite = unpack(a, b, tile, at, at + terms, accumulation.sum.terms, w) && finite;
      if (!accumulation.hopper) {
        add_fp32(tile, terms, w);
      } else if (finite) {
        add_hopper(accumulation.sum, tile, terms, w);
      } else {
        add_hopper_slowly(accumulation.sum, tile, terms, a.format(), b.format(), w);
      }
    }
    add_to_total(a, b, tile, begin, w);
  }
}

template <class Out>
void write(const Tile& tile, int64_t stride, const Workspace& w, Out* c, bool accumulate) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    Out* row = c + (tile.row + i) * stride + tile.column;
    for (int64_t j = 0; j < tile.columns; ++j) {
      if constexpr (std::is_same_v<Out, float>) {
        row[j] = w.total[i][j] + (accumulate ? row[j] : 0.0f);
      } else {
        row[j] = to_bf16(w.total[i][j]);
      }
    }
  }
}

}  // namespace

template <class Out>
void ScaledProducts::run(const GemmShape& shape, const Accumulation& accumulation,
                         const ScaledOperand& a, const ScaledOperand& b, Out* c, bool accumulate) {
  GNOMON_ASSERT(shape.m > 0 && shape.n > 0 && shape.k > 0);
  GNOMON_ASSERT(shape.stride_a == 0 && shape.stride_b == 0);
  const TensorCoreSum& sum = accumulation.sum;
  GNOMON_ASSERT(sum.terms == 16 || sum.terms == 32 || sum.terms == 64);
  GNOMON_ASSERT(sum.fraction_bits > 0 && sum.fraction_bits <= kTensorCoreBitsMax);
  GNOMON_ASSERT(sum.result_bits > 0 && sum.result_bits <= kTensorCoreBitsMax);
  GNOMON_ASSERT(accumulation.promote_every % sum.terms == 0);
  const Operand left(a, shape.m, shape.k, shape.transpose_a);
  const Operand right(b, shape.n, shape.k, !shape.transpose_b);
  const int64_t tile_columns = (shape.n + kColumns - 1) / kColumns;
  const int64_t tiles = (shape.m + kRows - 1) / kRows * tile_columns;
  const int64_t stride = row_stride(shape.stride_c, shape.n);
  std::byte* memory = scratch_.at_least(threads_ * static_cast<int64_t>(sizeof(Workspace)));
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (int thread = 0; thread < threads_; ++thread) {
    Workspace& workspace =
        *new (memory + static_cast<size_t>(thread) * sizeof(Workspace)) Workspace;
    const Range range = share_of(tiles, thread, threads_);
    for (int64_t index = range.begin; index < range.end; ++index) {
      const int64_t row = index / tile_columns * kRows;
      const int64_t column = index % tile_columns * kColumns;
      const Tile tile{row, std::min(kRows, shape.m - row), column,
                      std::min(kColumns, shape.n - column)};
      multiply_tile(left, right, tile, shape.k, accumulation, workspace);
      write(tile, stride, workspace, c, accumulate);
    }
  }
}

template void ScaledProducts::run(const GemmShape&, const Accumulation&, const ScaledOperand&,
                                  const ScaledOperand&, bf16*, bool);
template void ScaledProducts::run(const GemmShape&, const Accumulation&, const ScaledOperand&,
                                  const ScaledOperand&, float*, bool);

}  // namespace gnomon::cpu
