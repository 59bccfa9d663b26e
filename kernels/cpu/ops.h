// The CPU backend's operations as free functions, one file for each subject. `threads` is the
// number of OpenMP threads; work is divided statically, so that every reduction has one order for a
// given count. Shapes and meanings are those of kernels/backend.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace gnomon::cpu {

// The part of [0, count) that thread `thread` of `threads` works on, in multiples of `grain` where
// possible.
struct Range {
  int64_t begin;
  int64_t end;
};
inline Range share_of(int64_t count, int thread, int threads, int64_t grain = 1) {
  int64_t pieces = (count + grain - 1) / grain;
  int64_t begin = pieces * thread / threads * grain;
  int64_t end = pieces * (thread + 1) / threads * grain;
  return {begin < count ? begin : count, end < count ? end : count};
}

// quantize.cc
float amax(int threads, std::span<const bf16> x);
QuantizeCounts quantize(int threads, std::span<const bf16> x, Format format, float scale,
                        std::span<bf16> y);

void round_to_bf16(int threads, std::span<const float> x, std::span<bf16> y);

// norm.cc; `partials` is scratch of threads × width floats.
void add_rms_norm(int threads, std::span<bf16> residual, std::span<const bf16> x,
                  std::span<const bf16> w, float eps, std::span<bf16> y, std::span<float> rstd);
void rms_norm_backward(int threads, std::span<const bf16> residual, std::span<const bf16> w,
                       std::span<const float> rstd, std::span<const bf16> dy,
                       std::span<bf16> d_residual, std::span<float> dw, std::span<float> partials);

// elementwise.cc
void add_bias(int threads, std::span<bf16> y, std::span<const bf16> bias);
void bias_backward(int threads, std::span<const bf16> dy, std::span<float> db,
                   std::span<float> partials);
// cosines and sines are [tokens_per_sequence, head_dim/2].
void rope(int threads, std::span<bf16> x, int64_t tokens_per_sequence, int heads, int head_dim,
          std::span<const float> cosines, std::span<const float> sines, bool inverse);
void swiglu(int threads, std::span<const bf16> gate, std::span<const bf16> up, std::span<bf16> y);
void swiglu_backward(int threads, std::span<const bf16> gate, std::span<const bf16> up,
                     std::span<const bf16> dy, std::span<bf16> dgate, std::span<bf16> dup);

// loss.cc; `rows` is scratch of threads × vocabulary floats.
void embed(int threads, std::span<const int32_t> tokens, std::span<const bf16> table, int64_t width,
           std::span<bf16> y);
void embed_backward(int threads, std::span<const int32_t> tokens, std::span<const bf16> dy,
                    int64_t width, std::span<float> dtable);
void cross_entropy(int threads, std::span<bf16> logits, std::span<const int32_t> targets,
                   int64_t vocabulary, float scale, bool with_gradient, std::span<float> losses,
                   std::span<float> rows);

// optimizer.cc
double sum_of_squares(int threads, std::span<const float> x);
void adamw(int threads, const AdamwStep& step, std::span<const float> gradient, std::span<float> m,
           std::span<float> v, std::span<float> master, std::span<bf16> weight);
void zero(int threads, std::span<float> x);

}  // namespace gnomon::cpu
