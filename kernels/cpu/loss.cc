// The two ends of the model: token embedding, and softmax with cross entropy.
#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector_math.h"

namespace gnomon::cpu {
namespace {

template <class E>
float row_max(const E* __restrict logits, int64_t vocabulary) {
  float largest = to_float(logits[0]);
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < vocabulary; ++i) {
    float logit = to_float(logits[i]);
    largest = logit > largest ? logit : largest;
  }
  return largest;
}

template <class E>
float exponentials(const E* __restrict logits, float largest, float* __restrict row,
                   int64_t vocabulary) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < vocabulary; ++i) {
    float e = fast_exp(to_float(logits[i]) - largest);
    row[i] = e;
    sum += e;
  }
  return sum;
}

template <class E>
float cross_entropy_row(E* __restrict logits, int32_t target, int64_t vocabulary, float scale,
                        bool with_gradient, float* __restrict row) {
  if (target < 0) {
    if (with_gradient) std::fill_n(logits, vocabulary, E{});
    return 0.0f;
  }
  float largest = row_max(logits, vocabulary);
  float sum = exponentials(logits, largest, row, vocabulary);
  float loss = std::log(sum) + largest - to_float(logits[target]);
  if (!with_gradient) return loss;
  float factor = scale / sum;
#pragma omp simd
  for (int64_t i = 0; i < vocabulary; ++i) logits[i] = from_float<E>(row[i] * factor);
  logits[target] = from_float<E>(row[target] * factor - scale);
  return loss;
}

}  // namespace

template <class E>
void embed(int threads, std::span<const int32_t> tokens, std::span<const E> table, int64_t width,
           std::span<E> y) {
  int64_t rows = std::ssize(tokens);
  int64_t vocabulary = std::ssize(table) / width;
  GNOMON_ASSERT(std::ssize(y) == rows * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    GNOMON_ASSERT(tokens[row] >= 0 && tokens[row] < vocabulary);
    std::copy_n(table.data() + tokens[row] * width, width, y.data() + row * width);
  }
}

template <class E>
void embed_backward(int threads, std::span<const int32_t> tokens, std::span<const E> dy,
                    int64_t width, std::span<float> dtable) {
  int64_t rows = std::ssize(tokens);
  int64_t vocabulary = std::ssize(dtable) / width;
  GNOMON_ASSERT(std::ssize(dy) == rows * width);
  // Each thread owns some columns and takes the tokens in order.
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    Range columns = share_of(width, thread, threads, 16);
    for (int64_t row = 0; row < rows; ++row) {
      GNOMON_ASSERT(tokens[row] >= 0 && tokens[row] < vocabulary);
      float* __restrict sums = dtable.data() + tokens[row] * width;
      const E* __restrict gradient = dy.data() + row * width;
#pragma omp simd
      for (int64_t i = columns.begin; i < columns.end; ++i) sums[i] += to_float(gradient[i]);
    }
  }
}

template <class E>
void cross_entropy(int threads, std::span<E> logits, std::span<const int32_t> targets,
                   int64_t vocabulary, float scale, bool with_gradient, std::span<float> losses,
                   std::span<float> rows) {
  int64_t count = std::ssize(targets);
  GNOMON_ASSERT(std::ssize(logits) == count * vocabulary && losses.size() == targets.size());
  GNOMON_ASSERT(std::ssize(rows) >= threads * vocabulary);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    float* row = rows.data() + thread * vocabulary;
    Range range = share_of(count, thread, threads);
    for (int64_t n = range.begin; n < range.end; ++n) {
      GNOMON_ASSERT(targets[n] >= -1 && targets[n] < vocabulary);
      losses[n] = cross_entropy_row(logits.data() + n * vocabulary, targets[n], vocabulary, scale,
                                    with_gradient, row);
    }
  }
}

#define GNOMON_INSTANTIATE(E)                                                                 \
  template void embed<E>(int, std::span<const int32_t>, std::span<const E>, int64_t,          \
                         std::span<E>);                                                       \
  template void embed_backward<E>(int, std::span<const int32_t>, std::span<const E>, int64_t, \
                                  std::span<float>);                                          \
  template void cross_entropy<E>(int, std::span<E>, std::span<const int32_t>, int64_t, float, \
                                 bool, std::span<float>, std::span<float>);
GNOMON_INSTANTIATE(bf16)
GNOMON_INSTANTIATE(float)

}  // namespace gnomon::cpu
