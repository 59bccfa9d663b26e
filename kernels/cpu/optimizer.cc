// AdamW and what it needs.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlock = 4096;

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
void adamw(int threads, const AdamwStep& step, std::span<const float> gradient, std::span<float> m,
           std::span<float> v, std::span<float> master, std::span<E> weight) {
  int64_t count = std::ssize(gradient);
  GNOMON_ASSERT(m.size() == gradient.size() && v.size() == gradient.size());
  GNOMON_ASSERT(master.size() == gradient.size() && weight.size() == gradient.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    adamw_block(step, gradient.data() + begin, m.data() + begin, v.data() + begin,
                master.data() + begin, weight.data() + begin, std::min(kBlock, count - begin));
  }
}

void zero(int threads, std::span<float> x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    std::fill(x.begin() + range.begin, x.begin() + range.end, 0.0f);
  }
}

template void adamw<bf16>(int, const AdamwStep&, std::span<const float>, std::span<float>,
                          std::span<float>, std::span<float>, std::span<bf16>);
template void adamw<float>(int, const AdamwStep&, std::span<const float>, std::span<float>,
                           std::span<float>, std::span<float>, std::span<float>);

}  // namespace gnomon::cpu
