// Quantisation onto the values of a narrow format, kept in BF16. The bits are those of the scalar
// codec in formats.cc, which the tests compare with for every value.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "kernels/cpu/ops.h"
#include "numerics/quantizer.h"
#include "numerics/scales.h"

namespace gnomon::cpu {
namespace {

// A block is small enough for its counts to fit 32 bits in every vector lane.
constexpr int64_t kBlock = 4096;

// What rounding to a format needs, as FP32 bit patterns and magic numbers.
struct Rounding {
  explicit Rounding(Format format) {
    const FormatInfo& info = format_info(format);
    shift = 23 - info.mantissa_bits;
    smallest_normal = std::bit_cast<uint32_t>(static_cast<float>(info.smallest_normal));
    largest = std::bit_cast<uint32_t>(static_cast<float>(info.largest));
    // Adding it leaves exactly the multiples of the smallest subnormal, rounded to nearest even.
    magic = static_cast<float>(info.smallest_subnormal * 0x1p23);
    bool is_bf16 = format == Format::kBf16;
    nan_kept = is_bf16 ? 0x7FFFFFFFu : 0u;
    nan_set = is_bf16 ? 0x400000u : info.has_nan ? 0x7FC00000u : largest;
    nan_sign_kept = is_bf16 ? 0x80000000u : 0u;
  }
  int shift;
  uint32_t smallest_normal;
  uint32_t largest;
  float magic;
  // BF16 keeps the sign and payload of a NaN; the narrow formats have one NaN, or none and give the
  // largest.
  uint32_t nan_kept;
  uint32_t nan_set;
  uint32_t nan_sign_kept;
};

// The FP32 bits of `scaled`, rounded to the format.
template <int kShift>
inline uint32_t round_bits(const Rounding& rounding, float scaled) {
  uint32_t u = std::bit_cast<uint32_t>(scaled);
  uint32_t sign = u & 0x80000000u;
  uint32_t a = u ^ sign;
  bool is_nan = a > 0x7F800000u;
  uint32_t normal = (a + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u)) & ~((1u << kShift) - 1);
  uint32_t subnormal =
      std::bit_cast<uint32_t>((std::bit_cast<float>(a) + rounding.magic) - rounding.magic);
  uint32_t r = a < rounding.smallest_normal ? subnormal : normal;
  r = r > rounding.largest ? rounding.largest : r;
  r = is_nan ? (a & rounding.nan_kept) | rounding.nan_set : r;
  sign = is_nan ? sign & rounding.nan_sign_kept : sign;
  return r | sign;
}

// y = round(x·scale)·inverse, where `inverse` is a power of two.
template <int kShift>
void quantize_run(const Rounding& from, const bf16* __restrict x, int64_t count, float scale,
                  float inverse, bf16* __restrict y) {
  const Rounding rounding = from;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t r = round_bits<kShift>(rounding, to_float(x[i]) * scale);
    y[i].bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(r) * inverse) >> 16);
  }
}

// The same with a scale for each element.
template <int kShift>
void quantize_row(const Rounding& from, const bf16* __restrict x, int64_t count,
                  const float* __restrict scales, const float* __restrict inverses,
                  bf16* __restrict y) {
  const Rounding rounding = from;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t r = round_bits<kShift>(rounding, to_float(x[i]) * scales[i]);
    y[i].bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(r) * inverses[i]) >> 16);
  }
}

struct TileFunctions {
  void (*run)(const Rounding&, const bf16*, int64_t, float, float, bf16*);
  void (*row)(const Rounding&, const bf16*, int64_t, const float*, const float*, bf16*);
};

TileFunctions tile_functions(int mantissa_bits) {
  switch (mantissa_bits) {
    case 1:
      return {quantize_run<22>, quantize_row<22>};
    case 2:
      return {quantize_run<21>, quantize_row<21>};
    case 3:
      return {quantize_run<20>, quantize_row<20>};
    case 4:
      return {quantize_run<19>, quantize_row<19>};
    case 5:
      return {quantize_run<18>, quantize_row<18>};
    case 6:
      return {quantize_run<17>, quantize_row<17>};
    default:
      GNOMON_ASSERT(mantissa_bits == 7);
      return {quantize_run<16>, quantize_row<16>};
  }
}

template <int kShift>
QuantizeCounts quantize_block(const Rounding& rounding, const bf16* __restrict x, int64_t count,
                              float scale, bf16* __restrict y) {
  const uint32_t smallest_normal = rounding.smallest_normal;
  const uint32_t largest = rounding.largest;
  const float magic = rounding.magic;
  const uint32_t nan_kept = rounding.nan_kept;
  const uint32_t nan_set = rounding.nan_set;
  const uint32_t nan_sign_kept = rounding.nan_sign_kept;
  int32_t saturated = 0;
  int32_t underflowed = 0;
#pragma omp simd reduction(+ : saturated, underflowed)
  for (int64_t i = 0; i < count; ++i) {
    uint32_t u = std::bit_cast<uint32_t>(to_float(x[i]) * scale);
    uint32_t sign = u & 0x80000000u;
    uint32_t a = u ^ sign;
    bool is_nan = a > 0x7F800000u;
    uint32_t normal =
        (a + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u)) & ~((1u << kShift) - 1);
    uint32_t subnormal = std::bit_cast<uint32_t>((std::bit_cast<float>(a) + magic) - magic);
    uint32_t r = a < smallest_normal ? subnormal : normal;
    r = r > largest ? largest : r;
    r = is_nan ? (a & nan_kept) | nan_set : r;
    sign = is_nan ? sign & nan_sign_kept : sign;
    saturated += (a > largest) & !is_nan ? 1 : 0;
    underflowed += (r == 0) & ((x[i].bits & 0x7FFFu) != 0) ? 1 : 0;
    y[i].bits = static_cast<uint16_t>((r | sign) >> 16);
  }
  return {saturated, underflowed};
}

using BlockFunction = QuantizeCounts (*)(const Rounding&, const bf16*, int64_t, float, bf16*);

BlockFunction block_function(int mantissa_bits) {
  switch (mantissa_bits) {
    case 1:
      return quantize_block<22>;
    case 2:
      return quantize_block<21>;
    case 3:
      return quantize_block<20>;
    case 4:
      return quantize_block<19>;
    case 5:
      return quantize_block<18>;
    case 6:
      return quantize_block<17>;
    default:
      GNOMON_ASSERT(mantissa_bits == 7);
      return quantize_block<16>;
  }
}

uint16_t largest_magnitude_bits(const bf16* x, int64_t count) {
  uint16_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    auto magnitude = static_cast<uint16_t>(x[i].bits & 0x7FFFu);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// One call of quantize_tiles: what all its tiles share.
class TileQuantisation {
 public:
  TileQuantisation(const Quantizer& quantizer, int log2_shift, bool dequantises, const bf16* x,
                   int64_t rows, int64_t columns, bf16* y, float* scales)
      : rule_(quantizer.rule),
        format_max_(format_max(quantizer.format)),
        max_exponent_(exponent_of(format_max_)),
        shift_(std::ldexp(1.0f, log2_shift)),
        dequantises_(dequantises),
        rounding_(quantizer.format),
        functions_(tile_functions(format_info(quantizer.format).mantissa_bits)),
        grid_(tile_grid(quantizer, rows, columns)),
        rows_(rows),
        columns_(columns),
        x_(x),
        y_(y),
        scales_(scales) {}

  // Tiles of one row.
  void rows(int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t tile = 0; tile < grid_.columns; ++tile) {
        const int64_t column = tile * grid_.tile.columns;
        const int64_t count = std::min(grid_.tile.columns, columns_ - column);
        const int64_t at = row * columns_ + column;
        const float scale = scale_of(largest_magnitude_bits(x_ + at, count));
        if (scales_ != nullptr) scales_[row * grid_.columns + tile] = scale;
        functions_.run(rounding_, x_ + at, count, scale, inverse_of(scale), y_ + at);
      }
    }
  }

  // Pieces of kStrip columns of one row of tiles.
  static constexpr int64_t kStrip = 256;
  int64_t strips() const { return (columns_ + kStrip - 1) / kStrip; }
  int64_t pieces() const { return grid_.rows * strips(); }
  void piece(int64_t index) const {
    const int64_t band = index / strips();
    const int64_t column = index % strips() * kStrip;
    const int64_t count = std::min(kStrip, columns_ - column);
    const int64_t begin = band * grid_.tile.rows;
    const int64_t end = std::min(begin + grid_.tile.rows, rows_);
    uint16_t largest[kStrip] = {};
    for (int64_t row = begin; row < end; ++row) {
      const bf16* x = x_ + row * columns_ + column;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        auto magnitude = static_cast<uint16_t>(x[i].bits & 0x7FFFu);
        largest[i] = magnitude > largest[i] ? magnitude : largest[i];
      }
    }
    float scales[kStrip];
    float inverses[kStrip];
    for (int64_t i = 0; i < count; i += grid_.tile.columns) {
      const int64_t after = std::min(i + grid_.tile.columns, count);
      const float scale = scale_of(*std::max_element(largest + i, largest + after));
      std::fill(scales + i, scales + after, scale);
      std::fill(inverses + i, inverses + after, inverse_of(scale));
      if (scales_ != nullptr) {
        scales_[band * grid_.columns + (column + i) / grid_.tile.columns] = scale;
      }
    }
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * columns_ + column;
      functions_.row(rounding_, x_ + at, count, scales, inverses, y_ + at);
    }
  }

 private:
  static int exponent_of(float normal) {
    return static_cast<int>(std::bit_cast<uint32_t>(normal) >> 23) - 127;
  }

  // tile_scale() for magnitudes of BF16, without calls: quotients below are never subnormal.
  float scale_of(uint16_t magnitude_bits) const {
    if (rule_ == ScaleRule::kNone || magnitude_bits == 0 || magnitude_bits >= 0x7F80u) {
      return shift_;
    }
    const float amax = to_float({magnitude_bits});
    float scale = std::min(format_max_ / amax, kScaleMax);
    if (rule_ == ScaleRule::kPowerOfTwo) {
      scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7F800000u);
    } else if (rule_ == ScaleRule::kOcpFloor) {
      const int amax_exponent = magnitude_bits < 0x80u ? -127 : exponent_of(amax);
      const int exponent = std::min(max_exponent_ - amax_exponent, exponent_of(kScaleMax));
      scale = std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
    }
    return scale * shift_;
  }
  float inverse_of(float scale) const { return dequantises_ ? 1.0f / scale : 1.0f; }

  ScaleRule rule_;
  float format_max_;
  int max_exponent_;
  float shift_;
  bool dequantises_;
  Rounding rounding_;
  TileFunctions functions_;
  TileGrid grid_;
  int64_t rows_, columns_;
  const bf16* x_;
  bf16* y_;
  float* scales_;
};

}  // namespace

float amax(int threads, std::span<const bf16> x) {
  uint16_t largest = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : largest)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    largest =
        std::max(largest, largest_magnitude_bits(x.data() + range.begin, range.end - range.begin));
  }
  return largest >= 0x7F80u ? std::numeric_limits<float>::infinity() : to_float({largest});
}

QuantizeCounts quantize(int threads, std::span<const bf16> x, Format format, float scale,
                        std::span<bf16> y) {
  GNOMON_ASSERT(format != Format::kFp32 && x.size() == y.size());
  Rounding rounding(format);
  BlockFunction block = block_function(format_info(format).mantissa_bits);
  int64_t saturated = 0;
  int64_t underflowed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : saturated, underflowed)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      int64_t count = std::min(kBlock, range.end - begin);
      QuantizeCounts counts = block(rounding, x.data() + begin, count, scale, y.data() + begin);
      saturated += counts.saturated;
      underflowed += counts.underflowed;
    }
  }
  return {saturated, underflowed};
}

void quantize_tiles(int threads, const Quantizer& quantizer, const TileQuantiseOptions& options,
                    std::span<const bf16> x, int64_t rows, int64_t columns, std::span<bf16> y,
                    std::span<float> scales) {
  const TileGrid grid = tile_grid(quantizer, rows, columns);
  GNOMON_ASSERT(quantizer.rule != ScaleRule::kGiven && quantizer.format != Format::kFp32);
  GNOMON_ASSERT(!options.dequantise || quantizer.exact_in_bf16());
  GNOMON_ASSERT(std::ssize(x) == rows * columns && y.size() == x.size());
  GNOMON_ASSERT(scales.empty() || std::ssize(scales) == grid.count());
  const TileQuantisation work(quantizer, options.log2_shift, options.dequantise, x.data(), rows,
                              columns, y.data(), scales.empty() ? nullptr : scales.data());
  const bool by_rows = grid.tile.rows == 1;
  // A tile wider than a strip has one row, or is the whole width.
  GNOMON_ASSERT(by_rows || TileQuantisation::kStrip % grid.tile.columns == 0 ||
                columns <= TileQuantisation::kStrip);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    if (by_rows) {
      const Range range = share_of(rows, thread, threads);
      work.rows(range.begin, range.end);
    } else {
      const Range range = share_of(work.pieces(), thread, threads);
      for (int64_t i = range.begin; i < range.end; ++i) work.piece(i);
    }
  }
}

}  // namespace gnomon::cpu
