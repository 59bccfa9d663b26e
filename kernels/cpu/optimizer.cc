// AdamW and what it needs.
#include <algorithm>
#include <array>
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

template <class E>
void adamw_block(const AdamwStep& step, const float* __restrict gradient, float* __restrict m,
                 float* __restrict v, float* __restrict master, E* __restrict weight,
                 int64_t count) {
  const float beta1 = step.beta1;
  const float beta2 = step.beta2;
  const float eps = step.eps;
  const float gradient_scale = step.gradient_scale;
  const float kept = 1.0f - step.learning_rate * step.weight_decay;
  const float rate = step.learning_rate / step.bias_correction1;
  const float second = 1.0f / step.bias_correction2;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float g = gradient[i] * gradient_scale;
    float mean = beta1 * m[i] + (1.0f - beta1) * g;
    float square = beta2 * v[i] + (1.0f - beta2) * g * g;
    float value = master[i] * kept - rate * mean / (std::sqrt(square * second) + eps);
    m[i] = mean;
    v[i] = square;
    master[i] = value;
    weight[i] = from_float<E>(value);
  }
}

// Elements [begin, begin + count) of a call of adamw(): those below step.decayed decay.
template <class E>
void adamw_range(const AdamwStep& step, int64_t begin, int64_t count, const float* gradient,
                 float* m, float* v, float* master, E* weight) {
  const int64_t decayed = std::clamp<int64_t>(step.decayed - begin, 0, count);
  adamw_block(step, gradient, m, v, master, weight, decayed);
  AdamwStep rest = step;
  rest.weight_decay = 0;
  adamw_block(rest, gradient + decayed, m + decayed, v + decayed, master + decayed,
              weight + decayed, count - decayed);
}

// The same where a moment is not FP32; `begin` is a multiple of kMomentBlock.
template <class M, class V, class E>
void adamw_stored_block(const AdamwStep& step, int64_t begin, int64_t count, const float* gradient,
                        const M& m, const V& v, float* master, E* weight) {
  alignas(64) float mean[kMomentBlock];
  alignas(64) float square[kMomentBlock];
  load_moments<E4m3Codes>(m, begin, count, mean);
  load_moments<E5m2Codes>(v, begin, count, square);
  adamw_range(step, begin, count, gradient, mean, square, master, weight);
  const std::array<uint32_t, 4> keys =
      philox(step.seed ^ (kMomentStream << 32), static_cast<uint64_t>(step.step),
             static_cast<uint64_t>((step.first_element + begin) / kMomentBlock));
  store_moments<E4m3Codes>(m, begin, count, mean, nullptr, keys[0]);
  store_moments<E5m2Codes>(v, begin, count, square, mean, keys[1]);
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
void adamw(int threads, const AdamwStep& step, std::span<const float> gradient, const MomentSpan& m,
           const MomentSpan& v, std::span<float> master, std::span<E> weight) {
  const int64_t count = std::ssize(gradient);
  GNOMON_ASSERT(moment_elements(m) == count && moment_elements(v) == count);
  GNOMON_ASSERT(master.size() == gradient.size() && weight.size() == gradient.size());
  const auto* plain_m = std::get_if<std::span<float>>(&m);
  const auto* plain_v = std::get_if<std::span<float>>(&v);
  if (plain_m != nullptr && plain_v != nullptr) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      adamw_range(step, begin, std::min(kBlock, count - begin), gradient.data() + begin,
                  plain_m->data() + begin, plain_v->data() + begin, master.data() + begin,
                  weight.data() + begin);
    }
    return;
  }
  std::visit(
      [&](const auto& stored_m, const auto& stored_v) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t begin = 0; begin < count; begin += kMomentBlock) {
          adamw_stored_block(step, begin, std::min(kMomentBlock, count - begin),
                             gradient.data() + begin, stored_m, stored_v, master.data() + begin,
                             weight.data() + begin);
        }
      },
      m, v);
}

void zero(int threads, std::span<std::byte> x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    std::fill(x.begin() + range.begin, x.begin() + range.end, std::byte{0});
  }
}

template void adamw<bf16>(int, const AdamwStep&, std::span<const float>, const MomentSpan&,
                          const MomentSpan&, std::span<float>, std::span<bf16>);
template void adamw<float>(int, const AdamwStep&, std::span<const float>, const MomentSpan&,
                           const MomentSpan&, std::span<float>, std::span<float>);

}  // namespace gnomon::cpu
