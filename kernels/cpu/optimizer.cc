// Updates of weights and what they need.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/philox.h"
#include "kernels/cpu/moment_blocks.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlock = 4096;
constexpr uint64_t kMomentStream = 0x6D6F6D65;  // "mome"

double block_sum_of_squares(const float* x, int64_t count) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

uint32_t word_of(float x) { return std::bit_cast<uint32_t>(x); }
uint32_t word_of(bf16 x) { return x.bits; }
uint32_t word_of(uint8_t x) { return x; }

// Elements that keep the same part of their weight, `kept`. `v` may be null where the rule has no
// second moment. The sums are those of masters, and with kMoments of moments.
template <bool kMoments, class Rule, class E>
StateSums update_block(const Rule rule, float gradient_scale, float kept,
                       const float* __restrict gradient, float* __restrict m, float* __restrict v,
                       float* __restrict master, E* __restrict weight, int64_t count) {
  uint32_t read = 0, written = 0;
#pragma omp simd reduction(+ : read, written)
  for (int64_t i = 0; i < count; ++i) {
    float first = m[i], second = 0.0f;
    if constexpr (Rule::kHasSecondMoment) second = v[i];
    read += word_of(master[i]);
    if constexpr (kMoments) read += word_of(first) + word_of(second);
    float value = master[i] * kept - rule.step(gradient[i] * gradient_scale, first, second);
    m[i] = first;
    if constexpr (Rule::kHasSecondMoment) v[i] = second;
    master[i] = value;
    weight[i] = from_float<E>(value);
    written += word_of(value);
    if constexpr (kMoments) {
      written += word_of(first);
      if constexpr (Rule::kHasSecondMoment) written += word_of(second);
    }
  }
  return {read, written};
}

// Elements [begin, begin + count) of a call of update(): those below step.decayed decay.
template <bool kMoments, class Rule, class E>
StateSums update_range(const UpdateStep& step, const Rule& rule, int64_t begin, int64_t count,
                       const float* gradient, float* m, float* v, float* master, E* weight) {
  const int64_t decayed = std::clamp<int64_t>(step.decayed - begin, 0, count);
  const StateSums one = update_block<kMoments>(rule, step.gradient_scale,
                                               1.0f - step.learning_rate * step.weight_decay,
                                               gradient, m, v, master, weight, decayed);
  const StateSums two = update_block<kMoments>(rule, step.gradient_scale, 1.0f, gradient + decayed,
                                               m + decayed, v == nullptr ? v : v + decayed,
                                               master + decayed, weight + decayed, count - decayed);
  return {one.read + two.read, one.written + two.written};
}

template <class T>
uint32_t sum_bits(const T* x, int64_t count) {
  uint32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += word_of(x[i]);
  return sum;
}
// Elements [begin, begin + count); `begin` is a multiple of kMomentBlock.
template <class T>
uint32_t sum_bits(std::span<T> moments, int64_t begin, int64_t count) {
  return sum_bits(moments.data() + begin, count);
}
uint32_t sum_bits(const Fp8Moments& moments, int64_t begin, int64_t count) {
  return sum_bits(moments.codes.data() + begin, count) +
         sum_bits(moments.scales.data() + begin / kMomentBlock, moment_blocks(count));
}

// The same where a moment is not FP32; `begin` is a multiple of kMomentBlock.
template <class Rule, class M, class V, class E>
StateSums update_stored_block(const UpdateStep& step, const Rule& rule, int64_t begin,
                              int64_t count, const float* gradient, const M& m, const V& v,
                              float* master, E* weight) {
  alignas(64) float first[kMomentBlock];
  alignas(64) float second[kMomentBlock];
  const auto moment_bits = [&] {
    uint32_t bits = sum_bits(m, begin, count);
    if constexpr (Rule::kHasSecondMoment) bits += sum_bits(v, begin, count);
    return bits;
  };
  StateSums sums{moment_bits(), 0};
  load_moments<E4m3Codes>(m, begin, count, first);
  if constexpr (Rule::kHasSecondMoment) load_moments<E5m2Codes>(v, begin, count, second);
  const StateSums of_masters =
      update_range<false>(step, rule, begin, count, gradient, first, second, master, weight);
  sums.read += of_masters.read;
  const std::array<uint32_t, 4> keys =
      philox(step.seed ^ (kMomentStream << 32), static_cast<uint64_t>(step.step),
             static_cast<uint64_t>((step.first_element + begin) / kMomentBlock));
  store_moments<E4m3Codes>(m, begin, count, first, nullptr, keys[0]);
  if constexpr (Rule::kHasSecondMoment) {
    store_moments<E5m2Codes>(v, begin, count, second, first, keys[1]);
  }
  sums.written = of_masters.written + moment_bits();
  return sums;
}

// Null where a moment is not stored as FP32, or is not there.
float* plain(const MomentSpan& moments) {
  const auto* values = std::get_if<std::span<float>>(&moments);
  return values == nullptr ? nullptr : values->data();
}

template <class Rule, class E>
StateSums update_by(const Rule& rule, int threads, const UpdateStep& step,
                    std::span<const float> gradient, const MomentSpans& moments,
                    std::span<float> master, std::span<E> weight) {
  const int64_t count = std::ssize(gradient);
  const auto& [m, v] = moments;
  GNOMON_ASSERT(moment_elements(m) == count);
  GNOMON_ASSERT(!Rule::kHasSecondMoment || moment_elements(v) == count);
  float *plain_m = plain(m), *plain_v = plain(v);
  uint32_t read = 0, written = 0;
  if (plain_m != nullptr && (plain_v != nullptr || !Rule::kHasSecondMoment)) {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : read, written)
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const StateSums sums = update_range<true>(step, rule, begin, std::min(kBlock, count - begin),
                                                gradient.data() + begin, plain_m + begin,
                                                plain_v == nullptr ? plain_v : plain_v + begin,
                                                master.data() + begin, weight.data() + begin);
      read += sums.read;
      written += sums.written;
    }
    return {read, written};
  }
  std::visit(
      [&](const auto& stored_m, const auto& stored_v) {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : read, written)
        for (int64_t begin = 0; begin < count; begin += kMomentBlock) {
          const StateSums sums = update_stored_block(
              step, rule, begin, std::min(kMomentBlock, count - begin), gradient.data() + begin,
              stored_m, stored_v, master.data() + begin, weight.data() + begin);
          read += sums.read;
          written += sums.written;
        }
      },
      m, v);
  return {read, written};
}

}  // namespace

double sum_of_squares(int threads, std::span<const float> x) {
  std::vector<double> partials(static_cast<size_t>(threads));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    partials[thread] = block_sum_of_squares(x.data() + range.begin, range.end - range.begin);
  }
  double sum = 0.0;
  for (double partial : partials) sum += partial;
  return sum;
}

template <class E>
StateSums update(int threads, const UpdateStep& step, std::span<const float> gradient,
                 const MomentSpans& moments, std::span<float> master, std::span<E> weight) {
  GNOMON_ASSERT(master.size() == gradient.size() && weight.size() == gradient.size());
  StateSums sums;
  with_rule(step, [&](const auto& rule) {
    sums = update_by(rule, threads, step, gradient, moments, master, weight);
  });
  return sums;
}

void zero(int threads, std::span<std::byte> x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    std::fill(x.begin() + range.begin, x.begin() + range.end, std::byte{0});
  }
}

template StateSums update<bf16>(int, const UpdateStep&, std::span<const float>, const MomentSpans&,
                                std::span<float>, std::span<bf16>);
template StateSums update<float>(int, const UpdateStep&, std::span<const float>, const MomentSpans&,
                                 std::span<float>, std::span<float>);

}  // namespace gnomon::cpu
