// Bias, rotary position embedding and SwiGLU, forward and backward.
#include <algorithm>

#include "base/errors.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector_math.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlock = 4096;

// Calls block(begin, count) for every block of [0, count), divided statically among the threads.
template <typename Block>
void for_blocks(int threads, int64_t count, Block block) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t begin = 0; begin < count; begin += kBlock)
    block(begin, std::min(kBlock, count - begin));
}

void swiglu_block(const bf16* __restrict gate, const bf16* __restrict up, bf16* __restrict y,
                  int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float g = to_float(gate[i]);
    y[i] = to_bf16(g * fast_sigmoid(g) * to_float(up[i]));
  }
}

// d silu(g) = σ(g)·(1 + g·(1 − σ(g)))
void swiglu_backward_block(const bf16* gate, const bf16* up, const bf16* dy, bf16* dgate, bf16* dup,
                           int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float g = to_float(gate[i]);
    float sigmoid = fast_sigmoid(g);
    float gradient = to_float(dy[i]);
    float d_silu = sigmoid * (1.0f + g * (1.0f - sigmoid));
    uint16_t dg = to_bf16(gradient * to_float(up[i]) * d_silu).bits;
    uint16_t du = to_bf16(gradient * g * sigmoid).bits;
    dgate[i].bits = dg;
    dup[i].bits = du;
  }
}

void rotate_head(bf16* __restrict first, bf16* __restrict second, const float* __restrict cosines,
                 const float* __restrict sines, float sign, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    float a = to_float(first[i]);
    float b = to_float(second[i]);
    float sine = sign * sines[i];
    first[i] = to_bf16(a * cosines[i] - b * sine);
    second[i] = to_bf16(b * cosines[i] + a * sine);
  }
}

}  // namespace

void add_bias(int threads, std::span<bf16> y, std::span<const bf16> bias) {
  int64_t width = std::ssize(bias);
  GNOMON_ASSERT(width > 0 && std::ssize(y) % width == 0);
  int64_t rows = std::ssize(y) / width;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    bf16* __restrict values = y.data() + row * width;
    const bf16* __restrict added = bias.data();
#pragma omp simd
    for (int64_t i = 0; i < width; ++i)
      values[i] = to_bf16(to_float(values[i]) + to_float(added[i]));
  }
}

void bias_backward(int threads, std::span<const bf16> dy, std::span<float> db,
                   std::span<float> partials) {
  int64_t width = std::ssize(db);
  GNOMON_ASSERT(width > 0 && std::ssize(dy) % width == 0 &&
                std::ssize(partials) >= threads * width);
  int64_t rows = std::ssize(dy) / width;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    float* __restrict partial = partials.data() + thread * width;
    std::fill_n(partial, width, 0.0f);
    Range range = share_of(rows, thread, threads);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const bf16* __restrict values = dy.data() + row * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) partial[i] += to_float(values[i]);
    }
  }
  for (int thread = 0; thread < threads; ++thread) {
    const float* partial = partials.data() + thread * width;
    for (int64_t i = 0; i < width; ++i) db[i] += partial[i];
  }
}

void rope(int threads, std::span<bf16> x, int64_t tokens_per_sequence, int heads, int head_dim,
          std::span<const float> cosines, std::span<const float> sines, bool inverse) {
  int64_t width = int64_t{heads} * head_dim;
  int64_t half = head_dim / 2;
  GNOMON_ASSERT(head_dim % 2 == 0 && std::ssize(x) % (width * tokens_per_sequence) == 0);
  int64_t rows = std::ssize(x) / width;
  float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = row % tokens_per_sequence * half;
    for (int head = 0; head < heads; ++head) {
      bf16* values = x.data() + row * width + int64_t{head} * head_dim;
      rotate_head(values, values + half, cosines.data() + at, sines.data() + at, sign, half);
    }
  }
}

void swiglu(int threads, std::span<const bf16> gate, std::span<const bf16> up, std::span<bf16> y) {
  GNOMON_ASSERT(gate.size() == up.size() && gate.size() == y.size());
  for_blocks(threads, std::ssize(y), [&](int64_t begin, int64_t count) {
    swiglu_block(gate.data() + begin, up.data() + begin, y.data() + begin, count);
  });
}

void swiglu_backward(int threads, std::span<const bf16> gate, std::span<const bf16> up,
                     std::span<const bf16> dy, std::span<bf16> dgate, std::span<bf16> dup) {
  GNOMON_ASSERT(gate.size() == up.size() && gate.size() == dy.size());
  GNOMON_ASSERT(dgate.size() == gate.size() && dup.size() == gate.size());
  for_blocks(threads, std::ssize(dy), [&](int64_t begin, int64_t count) {
    swiglu_backward_block(gate.data() + begin, up.data() + begin, dy.data() + begin,
                          dgate.data() + begin, dup.data() + begin, count);
  });
}

}  // namespace gnomon::cpu
