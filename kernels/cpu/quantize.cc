// Quantisation onto the values of a narrow format, kept in BF16. The bits are those of the scalar
// codec in formats.cc, which the tests compare with for every value.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "kernels/cpu/ops.h"
#include "numerics/quantizer.h"
#include "numerics/scales.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlock = 4096;
// Columns that a loop over elements takes at a time.
constexpr int64_t kStrip = 256;
constexpr uint16_t kInfinity = 0x7F80;

// What rounding to a format needs, as FP32 bit patterns and magic numbers.
struct Rounding {
  explicit Rounding(Format format) {
    const FormatInfo& info = format_info(format);
    shift = 23 - info.mantissa_bits;
    smallest_normal = std::bit_cast<uint32_t>(static_cast<float>(info.smallest_normal));
    largest = std::bit_cast<uint32_t>(static_cast<float>(info.largest));
    last_to_largest = rounding_ends(format).to_largest;
    // Adding it leaves exactly the multiples of the smallest subnormal, rounded to nearest even.
    magic = static_cast<float>(info.smallest_subnormal * 0x1p23);
    bool is_bf16 = format == Format::kBf16;
    nan_kept = is_bf16 ? 0x7FFFFFFFu : 0u;
    nan_set = is_bf16 ? 0x400000u : info.has_nan ? 0x7FC00000u : largest;
    nan_sign_kept = is_bf16 ? 0x80000000u : 0u;
  }
  // True when a magnitude needs no limits; not so NaN.
  bool fits(float scaled) const { return scaled <= std::bit_cast<float>(last_to_largest); }

  int shift;
  uint32_t smallest_normal;
  uint32_t largest;
  uint32_t last_to_largest;  // the last magnitude that rounds to it; those above are cut
  float magic;
  // BF16 keeps the sign and payload of a NaN; the narrow formats have one NaN, or none and give the
  // largest.
  uint32_t nan_kept;
  uint32_t nan_set;
  uint32_t nan_sign_kept;
};

// The FP32 bits of `scaled`, rounded to the format. Without kLimits it is a number that rounds to
// one of the format; most casts are of such tensors or tiles, as their amaxes say.
template <int kShift, bool kLimits>
inline uint32_t round_bits(const Rounding& rounding, float scaled) {
  uint32_t u = std::bit_cast<uint32_t>(scaled);
  uint32_t sign = u & 0x80000000u;
  uint32_t a = u ^ sign;
  bool is_nan = a > 0x7F800000u;
  uint32_t normal = (a + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u)) & ~((1u << kShift) - 1);
  uint32_t subnormal =
      std::bit_cast<uint32_t>((std::bit_cast<float>(a) + rounding.magic) - rounding.magic);
  uint32_t r = a < rounding.smallest_normal ? subnormal : normal;
  if constexpr (!kLimits) return r | sign;
  r = r > rounding.largest ? rounding.largest : r;
  r = is_nan ? (a & rounding.nan_kept) | rounding.nan_set : r;
  sign = is_nan ? sign & rounding.nan_sign_kept : sign;
  return r | sign;
}

inline bool is_cut(const Rounding& rounding, float scaled) {
  const uint32_t a = std::bit_cast<uint32_t>(scaled) & 0x7FFFFFFFu;
  return (a > rounding.last_to_largest) & (a <= 0x7F800000u);
}

inline bool is_flushed(bf16 before, uint16_t after) {
  return ((after & 0x7FFFu) == 0) & ((before.bits & 0x7FFFu) != 0);
}

// Counts that the loops below add to, by place in the strip and in 16 bits, as elements are loaded
// and stored: a sum over a vector for every tile would cost more.
class Tally {
 public:
  static constexpr int64_t kStripsMost = std::numeric_limits<uint16_t>::max();
  // So many strips are about to be tallied.
  void begin(int64_t strips) {
    GNOMON_ASSERT(strips <= kStripsMost);
    if (strips_ + strips > kStripsMost) fold();
    strips_ += strips;
  }
  uint16_t* saturated() { return saturated_; }
  uint16_t* flushed() { return flushed_; }
  void add_to(CastCounts& counts) {
    fold();
    counts.saturated += all_saturated_;
    counts.flushed += all_flushed_;
  }

 private:
  void fold() {
    for (int64_t i = 0; i < kStrip; ++i) {
      all_saturated_ += std::exchange(saturated_[i], uint16_t{0});
      all_flushed_ += std::exchange(flushed_[i], uint16_t{0});
    }
    strips_ = 0;
  }

  alignas(64) uint16_t saturated_[kStrip] = {};
  alignas(64) uint16_t flushed_[kStrip] = {};
  int64_t strips_ = 0;
  int64_t all_saturated_ = 0;
  int64_t all_flushed_ = 0;
};

inline void add_if(bool counts, uint16_t& count) {
  const auto more = static_cast<uint16_t>(count + 1);
  count = counts ? more : count;
}

// y = round(x·scale)·inverse, where `inverse` is a power of two. kLimits as round_bits() has it.
template <int kShift, bool kLimits>
void quantize_run(const Rounding& from, const bf16* x, int64_t count, float scale, float inverse,
                  bf16* y, Tally& tally) {
  const Rounding rounding = from;
  for (int64_t begin = 0; begin < count; begin += kStrip) {
    const int64_t width = std::min(kStrip, count - begin);
    const bf16* __restrict source = x + begin;
    bf16* __restrict rounded = y + begin;
    uint16_t* __restrict saturated = tally.saturated();
    uint16_t* __restrict flushed = tally.flushed();
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float scaled = to_float(source[i]) * scale;
      const uint32_t r = round_bits<kShift, kLimits>(rounding, scaled);
      const auto bits =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(r) * inverse) >> 16);
      if constexpr (kLimits) add_if(is_cut(rounding, scaled), saturated[i]);
      add_if(is_flushed(source[i], bits), flushed[i]);
      rounded[i].bits = bits;
    }
  }
}

// The same with a scale for each element, of a strip.
template <int kShift, bool kLimits>
void quantize_row(const Rounding& from, const bf16* __restrict x, int64_t count,
                  const float* __restrict scales, const float* __restrict inverses,
                  bf16* __restrict y, Tally& tally) {
  const Rounding rounding = from;
  uint16_t* __restrict saturated = tally.saturated();
  uint16_t* __restrict flushed = tally.flushed();
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = to_float(x[i]) * scales[i];
    const uint32_t r = round_bits<kShift, kLimits>(rounding, scaled);
    const auto bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(r) * inverses[i]) >> 16);
    if constexpr (kLimits) add_if(is_cut(rounding, scaled), saturated[i]);
    add_if(is_flushed(x[i], bits), flushed[i]);
    y[i].bits = bits;
  }
}

// Each without and with limits.
struct LoopFunctions {
  void (*run[2])(const Rounding&, const bf16*, int64_t, float, float, bf16*, Tally&);
  void (*row[2])(const Rounding&, const bf16*, int64_t, const float*, const float*, bf16*, Tally&);
};

template <int kMantissaBits>
LoopFunctions loops_of() {
  constexpr int kShift = 23 - kMantissaBits;
  return {{quantize_run<kShift, false>, quantize_run<kShift, true>},
          {quantize_row<kShift, false>, quantize_row<kShift, true>}};
}

LoopFunctions loop_functions(int mantissa_bits) {
  switch (mantissa_bits) {
    case 1:
      return loops_of<1>();
    case 2:
      return loops_of<2>();
    case 3:
      return loops_of<3>();
    case 4:
      return loops_of<4>();
    case 5:
      return loops_of<5>();
    case 6:
      return loops_of<6>();
    default:
      GNOMON_ASSERT(mantissa_bits == 7);
      return loops_of<7>();
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
        loops_(loop_functions(format_info(quantizer.format).mantissa_bits)),
        grid_(tile_grid(quantizer, rows, columns)),
        rows_(rows),
        columns_(columns),
        x_(x),
        y_(y),
        scales_(scales) {}

  // Both count what they do in `tally`, and raise `peak` to |amax·scale| of their tiles.
  // Tiles of one row.
  void rows(int64_t begin, int64_t end, Tally& tally, float& peak) const {
    const int64_t strips_of_row = grid_.columns * ((grid_.tile.columns + kStrip - 1) / kStrip);
    for (int64_t row = begin; row < end; ++row) {
      tally.begin(strips_of_row);
      for (int64_t tile = 0; tile < grid_.columns; ++tile) {
        const int64_t column = tile * grid_.tile.columns;
        const int64_t count = std::min(grid_.tile.columns, columns_ - column);
        const int64_t at = row * columns_ + column;
        const uint16_t largest = largest_magnitude_bits(x_ + at, count);
        const float scale = scale_of(largest);
        if (scales_ != nullptr) scales_[row * grid_.columns + tile] = scale;
        const bool limits = raise_peak(largest, scale, peak);
        loops_.run[limits](rounding_, x_ + at, count, scale, inverse_of(scale), y_ + at, tally);
      }
    }
  }

  // Pieces of kStrip columns of one row of tiles.
  int64_t strips() const { return (columns_ + kStrip - 1) / kStrip; }
  int64_t pieces() const { return grid_.rows * strips(); }
  void piece(int64_t index, Tally& tally, float& peak) const {
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
    bool limits = false;
    for (int64_t i = 0; i < count; i += grid_.tile.columns) {
      const int64_t after = std::min(i + grid_.tile.columns, count);
      const uint16_t of_tile = *std::max_element(largest + i, largest + after);
      const float scale = scale_of(of_tile);
      limits |= raise_peak(of_tile, scale, peak);
      std::fill(scales + i, scales + after, scale);
      std::fill(inverses + i, inverses + after, inverse_of(scale));
      if (scales_ != nullptr) {
        scales_[band * grid_.columns + (column + i) / grid_.tile.columns] = scale;
      }
    }
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * columns_ + column;
      tally.begin(1);
      loops_.row[limits](rounding_, x_ + at, count, scales, inverses, y_ + at, tally);
    }
  }

 private:
  static int exponent_of(float normal) {
    return static_cast<int>(std::bit_cast<uint32_t>(normal) >> 23) - 127;
  }

  // tile_scale() for magnitudes of BF16, without calls: quotients below are never subnormal.
  float scale_of(uint16_t magnitude_bits) const {
    if (rule_ == ScaleRule::kNone || magnitude_bits == 0 || magnitude_bits >= kInfinity) {
      return shift_;
    }
    const float amax = to_float({magnitude_bits});
    float scale = std::min(format_max_ / amax, kLargestScale);
    if (rule_ == ScaleRule::kPowerOfTwo) {
      scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7F800000u);
    } else if (rule_ == ScaleRule::kOcpFloor) {
      const int amax_exponent = magnitude_bits < 0x80u ? -127 : exponent_of(amax);
      const int exponent = std::min(max_exponent_ - amax_exponent, exponent_of(kLargestScale));
      scale = std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
    }
    return scale * shift_;
  }
  float inverse_of(float scale) const { return dequantises_ ? 1.0f / scale : 1.0f; }

  // Returns true where the tile needs limits.
  bool raise_peak(uint16_t magnitude_bits, float scale, float& peak) const {
    const float scaled = to_float({magnitude_bits}) * scale;
    if (magnitude_bits < kInfinity) peak = std::max(peak, scaled);
    return !rounding_.fits(scaled);
  }

  ScaleRule rule_;
  float format_max_;
  int max_exponent_;
  float shift_;
  bool dequantises_;
  Rounding rounding_;
  LoopFunctions loops_;
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

CastCounts quantize(int threads, std::span<const bf16> x, Format format, float scale,
                    std::span<bf16> y, float amax) {
  GNOMON_ASSERT(format != Format::kFp32 && x.size() == y.size());
  const Rounding rounding(format);
  const float peak = std::fabs(amax * scale);
  const auto run = loop_functions(format_info(format).mantissa_bits).run[!rounding.fits(peak)];
  int64_t saturated = 0;
  int64_t flushed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : saturated, flushed)
  for (int thread = 0; thread < threads; ++thread) {
    const Range range = share_of(std::ssize(x), thread, threads, kBlock);
    Tally tally;
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      const int64_t count = std::min(kBlock, range.end - begin);
      tally.begin(kBlock / kStrip);
      run(rounding, x.data() + begin, count, scale, 1.0f, y.data() + begin, tally);
    }
    CastCounts counts;
    tally.add_to(counts);
    saturated += counts.saturated;
    flushed += counts.flushed;
  }
  return {std::ssize(x), saturated, flushed,
          std::isfinite(amax) ? peak_over_largest(peak, format) : 0};
}

CastCounts quantize_tiles(int threads, const Quantizer& quantizer,
                          const TileQuantiseOptions& options, std::span<const bf16> x, int64_t rows,
                          int64_t columns, std::span<bf16> y, std::span<float> scales) {
  const TileGrid grid = tile_grid(quantizer, rows, columns);
  GNOMON_ASSERT(quantizer.rule != ScaleRule::kGiven && quantizer.format != Format::kFp32);
  GNOMON_ASSERT(!options.dequantise || quantizer.exact_in_bf16());
  GNOMON_ASSERT(std::ssize(x) == rows * columns && y.size() == x.size());
  GNOMON_ASSERT(scales.empty() || std::ssize(scales) == grid.count());
  const TileQuantisation work(quantizer, options.log2_shift, options.dequantise, x.data(), rows,
                              columns, y.data(), scales.empty() ? nullptr : scales.data());
  const bool by_rows = grid.tile.rows == 1;
  // A tile wider than a strip has one row, or is the whole width.
  GNOMON_ASSERT(by_rows || kStrip % grid.tile.columns == 0 || columns <= kStrip);
  int64_t saturated = 0;
  int64_t flushed = 0;
  float peak = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : saturated, flushed) \
    reduction(max : peak)
  for (int thread = 0; thread < threads; ++thread) {
    Tally tally;
    float its_peak = 0;
    if (by_rows) {
      const Range range = share_of(rows, thread, threads);
      work.rows(range.begin, range.end, tally, its_peak);
    } else {
      const Range range = share_of(work.pieces(), thread, threads);
      for (int64_t i = range.begin; i < range.end; ++i) work.piece(i, tally, its_peak);
    }
    CastCounts counts;
    tally.add_to(counts);
    saturated += counts.saturated;
    flushed += counts.flushed;
    peak = std::max(peak, its_peak);
  }
  return {std::ssize(x), saturated, flushed, peak_over_largest(peak, quantizer.format)};
}

}  // namespace gnomon::cpu
