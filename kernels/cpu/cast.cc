#include "kernels/cpu/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/errors.h"
#include "kernels/cpu/cast_avx512.h"
#include "kernels/cpu/ops.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlock = 4096;

// From here on the result would push everything else out of the caches: it is written past them,
// as memcpy does, which also saves reading what is overwritten.
constexpr int64_t kStreamingBytesMin = int64_t{16} << 20;

// What encoding needs, as FP32 bit patterns and codes.
struct Encoding {
  Encoding(Format format, bool saturate) {
    const FormatInfo& info = format_info(format);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    rebias = static_cast<uint32_t>(127 - info.bias) << 23;
    smallest_normal = std::bit_cast<uint32_t>(static_cast<float>(info.smallest_normal));
    magic = static_cast<float>(info.smallest_subnormal * 0x1p23);
    largest = encode(format, static_cast<float>(info.largest));
    overflow = encode(format, kInfinity, saturate);
    nan = encode(format, std::numeric_limits<float>::quiet_NaN(), saturate);
    sign_shift = 32 - info.bits;
    sign_bit = 1u << (info.bits - 1);
  }
  uint32_t rebias;
  uint32_t smallest_normal;
  // Adding it leaves in the lowest bits the multiple of the smallest subnormal, rounded to nearest
  // even.
  float magic;
  uint32_t largest;
  uint32_t overflow;
  uint32_t nan;
  int sign_shift;
  uint32_t sign_bit;
};

// The same as vectors take it: the cap is the largest value, or what follows it where that is what
// an overflow gives.
MagnitudeCodes magnitude_codes(const Encoding& e, int mantissa_bits) {
  GNOMON_ASSERT(e.overflow == e.largest || e.overflow == e.largest + 1);
  const uint32_t cap = (e.overflow << (23 - mantissa_bits)) + e.rebias;
  return {.cap = std::bit_cast<float>(cap),
          .smallest_normal = e.smallest_normal,
          .mantissa_bits = mantissa_bits,
          .sign_bit = static_cast<uint8_t>(e.sign_bit),
          .nan = static_cast<uint8_t>(e.nan)};
}

template <int kShift, class E>
void encode_block(const Encoding& encoding, const E* __restrict x, int64_t count, float scale,
                  uint8_t* __restrict codes) {
  const Encoding e = encoding;
  const uint32_t magic_bits = std::bit_cast<uint32_t>(e.magic);
  const uint32_t round = (1u << (kShift - 1)) - 1 - e.rebias;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t u = std::bit_cast<uint32_t>(to_float(x[i]) * scale);
    uint32_t a = u & 0x7FFFFFFFu;
    uint32_t normal = (a + round + ((a >> kShift) & 1u)) >> kShift;
    uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + e.magic) - magic_bits;
    uint32_t r = a < e.smallest_normal ? subnormal : normal;
    r = r > e.largest ? e.overflow : r;
    r |= (u >> e.sign_shift) & e.sign_bit;
    r = a > 0x7F800000u ? e.nan : r;
    codes[i] = static_cast<uint8_t>(r);
  }
}

template <class E>
using EncodeBlock = void (*)(const Encoding&, const E*, int64_t, float, uint8_t*);

template <class E>
EncodeBlock<E> encode_block_for(int mantissa_bits) {
  switch (mantissa_bits) {
    case 1:
      return encode_block<22, E>;
    case 2:
      return encode_block<21, E>;
    default:
      GNOMON_ASSERT(mantissa_bits == 3);
      return encode_block<20, E>;
  }
}

bool streaming_pays(int64_t bytes_read, int64_t bytes_written, const void* out) {
  bool aligned = reinterpret_cast<uintptr_t>(out) % 64 == 0;
  return aligned && bytes_read + bytes_written >= kStreamingBytesMin;
}

// `out` is 64-byte aligned.
void stream_copy(const std::byte* from, int64_t bytes, std::byte* out) {
  int64_t done = 0;
#ifdef __SSE2__
  for (; done + 64 <= bytes; done += 64) {
    for (int64_t part = done; part < done + 64; part += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + part),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + part)));
    }
  }
#endif
  std::copy(from + done, from + bytes, out + done);
}

void end_of_streaming() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Calls block(begin, count, where) for every block of [0, count), `where` being out + begin or,
// when the result is to bypass the caches, a buffer that is streamed to there.
template <class Out, class Block>
void for_each_block(int threads, int64_t bytes_read, std::span<Out> out, Block block) {
  const bool streaming =
      streaming_pays(bytes_read, static_cast<int64_t>(out.size_bytes()), out.data());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    alignas(64) std::array<Out, kBlock> buffer;
    Range range = share_of(std::ssize(out), thread, threads, kBlock);
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      int64_t count = std::min(kBlock, range.end - begin);
      Out* place = out.data() + begin;
      block(begin, count, streaming ? buffer.data() : place);
      if (!streaming) continue;
      stream_copy(reinterpret_cast<const std::byte*>(buffer.data()),
                  count * static_cast<int64_t>(sizeof(Out)), reinterpret_cast<std::byte*>(place));
    }
    if (streaming) end_of_streaming();
  }
}

template <class E>
void decode_block(const CodeTable<E>& table, const uint8_t* __restrict codes, int64_t count,
                  E* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = table.values[codes[i]];
}

bool all_within(const uint8_t* codes, int64_t count, uint8_t largest_code) {
  uint8_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = codes[i] > largest ? codes[i] : largest;
  return largest <= largest_code;
}

}  // namespace

template <class E>
void cast_to_codes(int threads, Format format, std::span<const E> x, float scale,
                   std::span<uint8_t> codes, bool saturate) {
  GNOMON_ASSERT(format_info(format).bits <= 8 && x.size() == codes.size() && threads >= 1);
  const Encoding encoding(format, saturate);
  const int mantissa_bits = format_info(format).mantissa_bits;
  EncodeBlock<E> encode_some = encode_block_for<E>(mantissa_bits);
  const MagnitudeCodes magnitudes = magnitude_codes(encoding, mantissa_bits);
  const bool vectors =
      std::is_same_v<E, bf16> && avx512_cast_runs() && scale > 0.0f && std::isfinite(scale);
  for_each_block(threads, static_cast<int64_t>(x.size_bytes()), codes,
                 [&](int64_t begin, int64_t count, uint8_t* out) {
                   const E* from = x.data() + begin;
                   int64_t done = 0;
                   if constexpr (std::is_same_v<E, bf16>) {
                     if (vectors) done = avx512_encode(magnitudes, from, count, scale, out);
                   }
                   encode_some(encoding, from + done, count - done, scale, out + done);
                 });
}

template <class E>
void cast_from_codes(int threads, Format format, std::span<const uint8_t> codes, float scale,
                     std::span<E> y) {
  const int bits = format_info(format).bits;
  GNOMON_ASSERT(bits <= 8 && y.size() == codes.size() && threads >= 1);
  std::array<E, 256> values{};
  for (uint32_t code = 0; code < (1u << bits); ++code) {
    values[code] = from_float<E>(decode(format, code) * scale);
  }
  const CodeTable<E> table(values);
  const auto largest_code = static_cast<uint8_t>((1 << bits) - 1);
  const bool vectors = avx512_cast_runs();
  for_each_block(threads, std::ssize(codes), y, [&](int64_t begin, int64_t count, E* out) {
    const uint8_t* from = codes.data() + begin;
    GNOMON_ASSERT(bits == 8 || all_within(from, count, largest_code));
    int64_t done = vectors ? avx512_decode(table, from, count, out) : 0;
    decode_block(table, from + done, count - done, out + done);
  });
}

template void cast_to_codes<bf16>(int, Format, std::span<const bf16>, float, std::span<uint8_t>,
                                  bool);
template void cast_to_codes<float>(int, Format, std::span<const float>, float, std::span<uint8_t>,
                                   bool);
template void cast_from_codes<bf16>(int, Format, std::span<const uint8_t>, float, std::span<bf16>);
template void cast_from_codes<float>(int, Format, std::span<const uint8_t>, float,
                                     std::span<float>);

}  // namespace gnomon::cpu
