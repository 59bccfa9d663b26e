// The CPU backend's operations as free functions, one file for each subject. `threads` is the
// number of OpenMP threads; work is divided statically, so that every reduction has one order for a
// given count. Shapes and meanings are those of kernels/backend.h; E is bf16 or float.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/shares.h"

namespace gnomon::cpu {

// quantize.cc; y and scales as quantize_matrix() says. The counts depend on no number of threads.
float amax(int threads, std::span<const bf16> x);
// `amax` is that of x; +Inf: it is not known, and there is no peak.
CastCounts quantize(int threads, std::span<const bf16> x, Format format, float scale,
                    std::span<bf16> y, float amax = std::numeric_limits<float>::infinity());
CastCounts quantize_tiles(int threads, const Quantizer& quantizer,
                          const TileQuantiseOptions& options, std::span<const bf16> x, int64_t rows,
                          int64_t columns, std::span<bf16> y, std::span<float> scales);

// norm.cc; `partials` is scratch of threads × width floats.
template <class E>
void add_rms_norm(int threads, std::span<const E> residual, std::span<const E> x,
                  std::span<const E> w, float eps, std::span<E> sum, std::span<E> y,
                  std::span<float> rstd);
template <class E>
void rms_norm_backward(int threads, std::span<const E> residual, std::span<const E> w,
                       std::span<const float> rstd, std::span<const E> dy, std::span<E> d_residual,
                       std::span<float> dw, std::span<float> partials);

// norm_heads.cc; `partials` is scratch of threads × width of a head floats.
template <class E>
void norm_heads(int threads, E* x, int64_t n, int heads, std::span<const E> w, float eps,
                int64_t stride, std::span<E> before, std::span<float> rstd);
template <class E>
void norm_heads_backward(int threads, std::span<const E> before, std::span<const E> w,
                         std::span<const float> rstd, E* dy, int64_t n, int heads, int64_t stride,
                         std::span<float> dw, std::span<float> partials);

// elementwise.cc
template <class E>
void round_sum(int threads, std::span<const float> x, std::span<E> y);
template <class E>
void add_bias(int threads, E* y, int64_t n, std::span<const E> bias, int64_t stride);
template <class E>
void bias_backward(int threads, const E* dy, int64_t n, std::span<float> db, int64_t stride,
                   std::span<float> partials);
// cosines and sines are [tokens_per_sequence, head_dim/2].
template <class E>
void rope(int threads, E* x, int64_t n, int64_t tokens_per_sequence, int heads, int head_dim,
          std::span<const float> cosines, std::span<const float> sines, bool inverse,
          int64_t stride);
template <class E>
void swiglu(int threads, const E* gate, const E* up, int64_t n, int64_t width, int64_t stride,
            E* y);
template <class E>
void swiglu_backward(int threads, const E* gate, const E* up, const E* dy, int64_t n, int64_t width,
                     int64_t stride, E* dgate, E* dup, int64_t stride_d);

// loss.cc; `rows` is scratch of threads × vocabulary floats.
template <class E>
void embed(int threads, std::span<const int32_t> tokens, std::span<const E> table, int64_t width,
           std::span<E> y);
template <class E>
void embed_backward(int threads, std::span<const int32_t> tokens, std::span<const E> dy,
                    int64_t width, std::span<float> dtable);
template <class E>
void cross_entropy(int threads, std::span<E> logits, std::span<const int32_t> targets,
                   int64_t vocabulary, float scale, bool with_gradient, std::span<float> losses,
                   std::span<float> rows);

// hash.cc
uint64_t hash_terms(int threads, std::span<const std::byte> x, uint64_t first);

// optimizer.cc
double sum_of_squares(int threads, std::span<const float> x);
template <class E>
StateSums update(int threads, const UpdateStep& step, std::span<const float> gradient,
                 const MomentSpans& moments, std::span<float> master, std::span<E> weight);
void zero(int threads, std::span<std::byte> x);

}  // namespace gnomon::cpu
