#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/quantize.h"

namespace gnomon::cuda {
namespace {

__global__ void multiply_factors_kernel(float factor, const float* first, const float* second,
                                        float* result) {
  const float of_first = first == nullptr ? factor : product(factor, *first);
  *result = second == nullptr ? of_first : product(of_first, *second);
}

__global__ void spread_kernel(const float* value, int64_t count, float* copies) {
  const int64_t i = global_thread();
  if (i < count) copies[i] = *value;
}

__global__ void amax_kernel(const bf16* __restrict__ x, int64_t count, uint32_t* amax) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  uint32_t largest = 0;
  for (int64_t i = global_thread(); i < count / kVector; i += all_threads()) {
    const EightBits values = load_bits(x + i * kVector);
    for (int k = 0; k < kVector; ++k) largest = Largest()(largest, magnitude_bits(values[k]));
  }
  for (int64_t i = count / kVector * kVector + global_thread(); i < count; i += all_threads()) {
    largest = Largest()(largest, magnitude_bits(x[i]));
  }
  largest = block_reduce(largest, uint32_t{0}, room, Largest());
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

__global__ void raise_kernel(const float* amax, float* most) {
  if (is_scalable(*amax)) *most = fmaxf(*most, *amax);
}

__global__ void choose_scale_kernel(ScaleArithmetic how, float* scalars) {
  const float scale = times_power_of_two(scale_of(how, scalars[kAmax]), how.log2_shift);
  scalars[kScale] = scale;
  scalars[kInverseScale] = quotient(1.0f, scale);
}

// The block's piece of a tensor with one scale.
template <class Values>
__device__ void cast_whole(Format format, Values& values, int64_t rows, int64_t columns,
                           float scale, uint8_t* as_stored, uint8_t* transposed,
                           const CountPlan& counting) {
  GNOMON_SHARED(uint64_t, room, [kWarp]);
  const int64_t row0 = int64_t{blockIdx.y} * kSide, column0 = int64_t{blockIdx.x} * kSide;
  const auto scale_at = [=](int, int) { return scale; };
  count_piece(counting, values, rows, columns, row0, column0, scale_at, room);
  const Piece piece{dynamic_shared<uint32_t>()};
  cast_piece(format, values, rows, columns, row0, column0, as_stored, transposed, piece, scale_at);
}

__global__ void cast_kernel(Format format, const bf16* __restrict__ x, int64_t rows,
                            int64_t columns, const float* scalars, uint8_t* as_stored,
                            uint8_t* transposed, CountPlan counting) {
  const bool first = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0;
  if (first && counting.amax != nullptr) {
    atomicMax(reinterpret_cast<uint32_t*>(&counting.counts->peak),
              peak_bits(counting, *counting.amax, scalars[kScale]));
  }
  Stored values{x, columns};
  cast_whole(format, values, rows, columns, scalars[kScale], as_stored, transposed, counting);
}

// Values that are made here, and stored.
struct Made {
  Gated from;
  bf16* y;
  int64_t columns;
  uint32_t largest = 0;
  __device__ Eight made(int64_t row, int64_t column) const {
    const int64_t at = row * from.stride + column;
    return swiglu_of(load_eight(from.gate + at), load_eight(from.up + at));
  }
  __device__ static EightBits rounded_bits(const Eight& eight) {
    EightBits bits;
    for (int i = 0; i < kVector / 2; ++i)
      bits.words[i] = rounded_pair(eight[2 * i], eight[2 * i + 1]);
    return bits;
  }
  __device__ EightBits peek(int64_t row, int64_t column) const {
    return rounded_bits(made(row, column));
  }
  __device__ EightBits load(int64_t row, int64_t column) {
    const Eight eight = made(row, column);
    largest = Largest()(largest, store_eight(y + row * columns + column, eight));
    return rounded_bits(eight);
  }
};

__global__ void swiglu_cast_kernel(Format format, Gated from, int64_t rows, int64_t columns,
                                   bf16* y, float* amax, const float* scalars, uint8_t* as_stored,
                                   uint8_t* transposed, CountPlan counting) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  Made values{from, y, columns};
  cast_whole(format, values, rows, columns, scalars[kScale], as_stored, transposed, counting);
  report_largest(values.largest, room, amax);
  if (counting.amax != nullptr) {
    const float largest = float_of(no_more_than_infinity(values.largest));
    report_largest(peak_bits(counting, largest, scalars[kScale]), room, &counting.counts->peak);
  }
}

// ---- any format, as BF16 values ----

struct ValueRounding {
  int mantissa_bits = 0;
  int exponent_min = 0;  // of the smallest normal value
  float largest = 0;
  bool has_nan = false;
};

// As round_to(), saturating: steps of 2^(exponent − mantissa bits), to the nearest even one.
__device__ float round_value(const ValueRounding& how, float x) {
  const uint32_t sign = bits_of(x) & 0x80000000u;
  const float magnitude = float_of(bits_of(x) & 0x7FFFFFFFu);
  if (magnitude != magnitude) return how.has_nan ? x : how.largest;
  if (magnitude >= how.largest) return float_of(bits_of(how.largest) | sign);
  if (magnitude == 0) return x;
  const int exponent = exponent_of(magnitude);
  const int step = (exponent < how.exponent_min ? how.exponent_min : exponent) - how.mantissa_bits;
  const float steps = rintf(times_power_of_two(magnitude, -step));
  return float_of(bits_of(fminf(times_power_of_two(steps, step), how.largest)) | sign);
}

struct Tiling {
  int64_t rows, columns;  // of a tile
  int64_t across;         // tiles
  __device__ int64_t tile(int64_t row, int64_t column) const {
    return row / rows * across + column / columns;
  }
};

__global__ void tile_amaxes_kernel(const bf16* __restrict__ x, int64_t count, int64_t columns,
                                   Tiling tiling, uint32_t* amaxes) {
  const int64_t i = global_thread();
  if (i >= count) return;
  atomicMax(amaxes + tiling.tile(i / columns, i % columns), magnitude_bits(x[i]));
}

__global__ void round_copy_kernel(ScaleArithmetic how, ValueRounding rounding,
                                  const bf16* __restrict__ x, int64_t count, int64_t columns,
                                  Tiling tiling, const float* scalars, const uint32_t* amaxes,
                                  bf16* y, CountPlan counting) {
  GNOMON_SHARED(uint64_t, room, [kWarp]);
  GNOMON_SHARED(uint32_t, of_peaks, [kWarp]);
  uint64_t counted = 0;
  uint32_t peak = 0;
  const int64_t i = global_thread();
  if (i < count) {
    const int64_t row = i / columns, column = i % columns;
    float scale = 1;
    if (amaxes == nullptr) {
      scale = scalars[kScale];
      if (i == 0 && counting.amax != nullptr) peak = peak_bits(counting, *counting.amax, scale);
    } else {
      const uint32_t amax = amaxes[tiling.tile(row, column)];
      scale = tile_scale_of(how, amax, nullptr);
      const bool first = row % tiling.rows == 0 && column % tiling.columns == 0;
      if (first) peak = peak_bits(counting, float_of(amax), scale);
    }
    const float scaled = product(value_of(x[i]), scale);
    const float value = round_value(rounding, scaled);
    y[i] = rounded(amaxes == nullptr ? value : quotient(value, scale));
    if (row % kSide < kCountedRows) counted = tally(counting.ends, x[i], scaled);
  }
  if (counting.counts == nullptr) return;
  report_tally(counting, counted, room);
  report_largest(peak, of_peaks, &counting.counts->peak);
}

template <class E>
__global__ void lose_terms_kernel(E* copy, int64_t rows, int64_t columns, bool along_rows,
                                  int64_t first, int64_t count) {
  const int64_t i = global_thread();
  if (i >= rows * columns) return;
  const int64_t term = along_rows ? i / columns : i % columns;
  if (term >= first && term < first + count) copy[i] = E{};
}

}  // namespace

void amax(const bf16* x, int64_t count, float* amax, Stream stream) {
  clear(amax, sizeof(float), stream);
  if (count == 0) return;
  const int64_t blocks = blocks_for(count, int64_t{kThreads} * kVector * 4);
  launch("amax", amax_kernel, {.blocks_x = blocks < kBlocksMost ? blocks : kBlocksMost}, stream, x,
         count, reinterpret_cast<uint32_t*>(amax));
}

void raise(const float* amax, float* most, Stream stream) {
  launch("raise", raise_kernel, {.threads = 1}, stream, amax, most);
}

void choose_scale(const Rounding& rounding, float* scalars, Stream stream) {
  launch("choose_scale", choose_scale_kernel, {.threads = 1}, stream, arithmetic_of(rounding),
         scalars);
}

void spread(const float* value, int64_t count, float* copies, Stream stream) {
  launch("spread", spread_kernel, {.blocks_x = blocks_for(count, kThreads), .threads = kThreads},
         stream, value, count, copies);
}

void multiply_factors(float factor, const float* first, const float* second, float* product,
                      Stream stream) {
  launch("multiply_factors", multiply_factors_kernel, {.threads = 1}, stream, factor, first, second,
         product);
}

void cast(Format format, const bf16* x, int64_t rows, int64_t columns, const float* scalars,
          uint8_t* as_stored, uint8_t* transposed, const Counting& counting, Stream stream) {
  check_matrix(rows, columns);
  launch("cast", cast_kernel, pieces_of(rows, columns), stream, format, x, rows, columns, scalars,
         as_stored, transposed, plan_counts(counting, format, rows, columns, scalars));
}

void swiglu_cast(Format format, const Gated& from, int64_t rows, int64_t columns, bf16* y,
                 float* amax, const float* scalars, uint8_t* as_stored, uint8_t* transposed,
                 const Counting& counting, Stream stream) {
  check_matrix(rows, columns);
  GNOMON_ASSERT(from.stride % kVector == 0);
  forget_amax(amax, stream);
  launch("swiglu_cast", swiglu_cast_kernel, pieces_of(rows, columns), stream, format, from, rows,
         columns, y, amax, scalars, as_stored, transposed,
         plan_counts(counting, format, rows, columns, scalars));
}

void round_copy(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                const float* scalars, bf16* y, uint32_t* amaxes, const Counting& counting,
                Stream stream) {
  const FormatInfo& info = format_info(rounding.quantizer.format);
  const ValueRounding how{.mantissa_bits = info.mantissa_bits,
                          .exponent_min = std::ilogb(info.smallest_normal),
                          .largest = static_cast<float>(info.largest),
                          .has_nan = info.has_nan};
  const int64_t count = rows * columns;
  const Grid grid{.blocks_x = blocks_for(count, kThreads), .threads = kThreads};
  const bool whole = rounding.whole_tensor();
  const TileGrid tiles = tile_grid(rounding.quantizer, rows, columns);
  const Tiling tiling{tiles.tile.rows, tiles.tile.columns, tiles.columns};
  if (!whole) {
    clear(amaxes, tiles.count() * static_cast<int64_t>(sizeof(uint32_t)), stream);
    launch("tile_amaxes", tile_amaxes_kernel, grid, stream, x, count, columns, tiling, amaxes);
  }
  launch("round_copy", round_copy_kernel, grid, stream, arithmetic_of(rounding), how, x, count,
         columns, tiling, scalars, whole ? nullptr : amaxes, y,
         plan_counts(counting, rounding.quantizer.format, rows, columns, scalars));
}

template <class E>
void lose_terms(E* copy, int64_t rows, int64_t columns, bool along_rows, int64_t first,
                int64_t count, Stream stream) {
  launch("lose_terms", lose_terms_kernel<E>,
         {.blocks_x = blocks_for(rows * columns, kThreads), .threads = kThreads}, stream, copy,
         rows, columns, along_rows, first, count);
}
template void lose_terms(uint8_t*, int64_t, int64_t, bool, int64_t, int64_t, Stream);
template void lose_terms(bf16*, int64_t, int64_t, bool, int64_t, int64_t, Stream);

}  // namespace gnomon::cuda
