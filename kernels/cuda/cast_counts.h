// What a cast does to its values, counted while it is made (CastCounts, kernels/operand.h). Only
// the first rows of every kSide are looked at: shares are all that is asked for.
#pragma once

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/quantize.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

inline constexpr int kCountedRows = 16;  // of kSide

// What and where a kernel counts.
struct CountPlan {
  CastCounts* counts = nullptr;
  const float* amax = nullptr;  // of a whole tensor, where it is known
  RoundingEnds ends;
  float largest = 0;   // of the format
  int64_t values = 0;  // that are looked at
};

inline CountPlan plan_counts(const Counting& counting, Format format, int64_t rows, int64_t columns,
                             const float* scalars) {
  const int64_t rest = rows % kSide;
  const int64_t counted = rows / kSide * kCountedRows + (rest < kCountedRows ? rest : kCountedRows);
  return {.counts = counting.counts,
          .amax = counting.counts != nullptr && counting.amax_known ? scalars + kAmax : nullptr,
          .ends = rounding_ends(format),
          .largest = static_cast<float>(format_info(format).largest),
          .values = counted * columns};
}

// The bits of peak_over_largest() for a tile with this amax. One that is not finite says nothing.
__device__ inline uint32_t peak_bits(const CountPlan& how, float amax, float scale) {
  constexpr uint32_t kMost = 0x7F7FFFFFu;
  if (how.counts == nullptr || bits_of(amax) >= 0x7F800000u) return 0;
  const uint32_t over = bits_of(quotient(product(amax, scale), how.largest)) & 0x7FFFFFFFu;
  return over < kMost ? over : kMost;
}

// What a thread has counted: saturated values in the upper half, flushed ones in the lower.
__device__ inline uint64_t tally(const RoundingEnds& ends, bf16 value, float scaled) {
  const uint32_t magnitude = bits_of(scaled) & 0x7FFFFFFFu;
  const bool saturated = magnitude > ends.to_largest && magnitude <= 0x7F800000u;
  const bool flushed = magnitude <= ends.to_zero && (value.bits & 0x7FFFu) != 0;
  return uint64_t{saturated} << 32 | uint64_t{flushed};
}

// Adds up what the block's threads have. Every thread calls it; `room` is as in block_reduce().
__device__ inline void report_tally(const CountPlan& how, uint64_t own, uint64_t* room) {
  own = block_reduce(own, uint64_t{0}, room, Add());
  if (threadIdx.x != 0) return;
  const auto add = [](int64_t& sum, uint64_t more) {
    if (more > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&sum), more);
  };
  if (blockIdx.x == 0 && blockIdx.y == 0)
    add(how.counts->values, static_cast<uint64_t>(how.values));
  add(how.counts->saturated, own >> 32);
  add(how.counts->flushed, own & 0xFFFFFFFFu);
}

}  // namespace gnomon::cuda
