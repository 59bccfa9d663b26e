// The device's own attention, on a device or by emulation on the CPU, against plain FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/kernels/device_support.h"
#include "tests/kernels/reference.h"

namespace gnomon::cuda {
namespace {

using test::changed, test::device_stream, test::given;

struct Sizes {
  int64_t sequences, tokens;
  int heads, kv_heads, head_dim;
  int64_t padding;  // between rows
};

// In double, of what BF16 holds: o, and the gradients of Σ o·d_o.
struct Expected {
  explicit Expected(const AttentionShape& shape) : s(shape) {}

  double& at(std::vector<double>& x, int heads, int64_t sequence, int64_t token, int64_t head,
             int64_t i) const {
    return x[static_cast<size_t>(((sequence * s.tokens + token) * heads + head) * s.head_dim + i)];
  }
  void run(const bf16* q, const bf16* k, const bf16* v, const bf16* d_o) {
    const auto all = static_cast<size_t>(s.sequences * s.tokens * s.head_dim);
    o.resize(all * static_cast<size_t>(s.heads));
    dq.resize(o.size());
    dk.resize(all * static_cast<size_t>(s.kv_heads));
    dv.resize(dk.size());
    for (int64_t b = 0; b < s.sequences; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t t = 0; t < s.tokens; ++t) query(q, k, v, d_o, b, h, t);
      }
    }
  }
  void query(const bf16* q, const bf16* k, const bf16* v, const bf16* d_o, int64_t b, int64_t h,
             int64_t t) {
    const int64_t kv = h / (s.heads / s.kv_heads), d = s.head_dim;
    const bf16* q_row = q + (b * s.tokens + t) * s.stride_q + h * d;
    const bf16* g_row = d_o + ((b * s.tokens + t) * s.heads + h) * d;
    const auto dot = [d](const bf16* x, const bf16* y) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) {
        sum += static_cast<double>(to_float(x[i])) * static_cast<double>(to_float(y[i]));
      }
      return sum;
    };
    const auto row = [&](const bf16* x, int64_t token) {
      return x + (b * s.tokens + token) * s.stride_kv + kv * d;
    };
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    std::vector<double> share;
    double sum = 0, delta = 0;
    for (int64_t j = 0; j <= t; ++j) share.push_back(std::exp(scale * dot(q_row, row(k, j))));
    for (double x : share) sum += x;
    for (int64_t j = 0; j <= t; ++j) {
      share[static_cast<size_t>(j)] /= sum;
      delta += share[static_cast<size_t>(j)] * dot(g_row, row(v, j));
    }
    for (int64_t j = 0; j <= t; ++j) {
      const double p = share[static_cast<size_t>(j)];
      const double ds = p * (dot(g_row, row(v, j)) - delta) * scale;
      for (int64_t i = 0; i < d; ++i) {
        at(o, s.heads, b, t, h, i) += p * static_cast<double>(to_float(row(v, j)[i]));
        at(dq, s.heads, b, t, h, i) += ds * static_cast<double>(to_float(row(k, j)[i]));
        at(dk, s.kv_heads, b, j, kv, i) += ds * static_cast<double>(to_float(q_row[i]));
        at(dv, s.kv_heads, b, j, kv, i) += p * static_cast<double>(to_float(g_row[i]));
      }
    }
  }

  AttentionShape s;
  std::vector<double> o, dq, dk, dv;
};

double relative_error(const std::vector<bf16>& found, int64_t stride, int64_t width,
                      const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const bf16 value = found[static_cast<size_t>(at / width * stride + at % width)];
    const double d = static_cast<double>(to_float(value)) - expected[i];
    difference += d * d;
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

class CudaAttention : public testing::TestWithParam<Sizes> {};

TEST_P(CudaAttention, ForwardAndBackwardAreThoseOfTheFormula) {
  const Sizes& it = GetParam();
  const int64_t n = it.sequences * it.tokens;
  const int64_t width = int64_t{it.heads} * it.head_dim, kv = int64_t{it.kv_heads} * it.head_dim;
  AttentionShape shape{it.sequences,    it.tokens,          it.heads,
                       it.kv_heads,     it.head_dim,        width + it.padding,
                       kv + it.padding, width + it.padding, kv + it.padding};
  const auto q = random_bf16(1, n * shape.stride_q, 1.5f);
  const auto k = random_bf16(2, n * shape.stride_kv, 1.5f), v = random_bf16(3, n * shape.stride_kv);
  const auto d_o = random_bf16(4, n * width);
  std::vector<bf16> o(static_cast<size_t>(n * width)), dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<std::byte> saved(static_cast<size_t>(attention_saved_bytes(shape)));
  std::vector<std::byte> scratch(static_cast<size_t>(attention_scratch_bytes(shape)));
  attention(shape, given(q), given(k), given(v), changed(o), changed(saved), device_stream());
  attention_backward(shape, given(q), given(k), given(v), given(o), given(d_o), changed(dq),
                     changed(dk), changed(dv), given(saved), changed(scratch), device_stream());
  Expected expected(shape);
  expected.run(q.data(), k.data(), v.data(), d_o.data());
  EXPECT_LT(relative_error(o, width, width, expected.o), 3e-3);
  EXPECT_LT(relative_error(dq, shape.stride_dq, width, expected.dq), 5e-3);
  EXPECT_LT(relative_error(dk, shape.stride_dkv, kv, expected.dk), 5e-3);
  EXPECT_LT(relative_error(dv, shape.stride_dkv, kv, expected.dv), 5e-3);
}
INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttention,
                         testing::Values(Sizes{1, 2, 1, 1, 8, 0}, Sizes{2, 33, 4, 2, 16, 8},
                                         Sizes{1, 70, 2, 1, 64, 0}, Sizes{1, 65, 3, 3, 128, 16},
                                         Sizes{1, 40, 2, 2, 72, 0}, Sizes{1, 36, 1, 1, 256, 0}));

}  // namespace
}  // namespace gnomon::cuda
