// The same inputs and the same thread count give the same bits, in one backend and in two.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

constexpr int kRepeats = 8;

// Runs `work` on fresh backends and repeatedly on one; every result must have the bits of the
// first.
template <typename Work>
void expect_same_bits(Work work) {
  for (int threads : {1, 2, 3}) {
    auto backend = make_cpu_backend(threads);
    auto first = work(*backend);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      ASSERT_EQ(work(*backend), first) << threads << " threads, repeat " << repeat;
    }
    auto other = make_cpu_backend(threads);
    ASSERT_EQ(work(*other), first) << threads << " threads, another backend";
  }
}

TEST(Determinism, Gemm) {
  for (GemmShape shape :
       {GemmShape{96, 80, 3000, true, false}, GemmShape{512, 100, 64, false, true}}) {
    auto a = random_bf16(1, shape.m * shape.k);
    auto b = random_bf16(2, shape.k * shape.n);
    expect_same_bits([&](Backend& backend) {
      std::vector<float> c(static_cast<size_t>(shape.m * shape.n));
      backend.gemm(shape, 0.3f, a.data(), b.data(), c.data(), true);
      return c;
    });
  }
}

TEST(Determinism, ReductionsOverTokens) {
  constexpr int64_t kRows = 333, kWidth = 70;
  auto x = random_bf16(1, kRows * kWidth), dy = random_bf16(2, kRows * kWidth),
       w = random_bf16(3, kWidth);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kRows; ++i) tokens.push_back(i * 7 % 13);
  expect_same_bits([&](Backend& backend) {
    auto residual = x;
    std::vector<bf16> y(x.size()), dx(x.size());
    std::vector<float> rstd(kRows), result(kWidth * 2 + 13 * kWidth + 10);
    std::span<float> dw = std::span(result).first(kWidth),
                     db = std::span(result).subspan(kWidth, kWidth);
    backend.add_rms_norm(residual, {}, w, 1e-5f, residual, y, rstd);
    backend.rms_norm_backward(residual, w, rstd, dy, dx, dw);
    backend.bias_backward(dy.data(), kRows, db, 0);
    std::vector<float> rstd_of_heads(kRows * 7);
    auto d_heads = dy;
    backend.norm_heads(y.data(), kRows, 7, std::span(w).first(10), 1e-5f, 0, dx, rstd_of_heads);
    backend.norm_heads_backward(dx, std::span(w).first(10), rstd_of_heads, d_heads.data(), kRows, 7,
                                0, std::span(result).last(10));
    backend.embed_backward(tokens, dy, kWidth, std::span(result).subspan(2 * kWidth, 13 * kWidth));
    return result;
  });
}

TEST(Determinism, SumOfSquares) {
  auto x = random_floats(1, 100003);
  expect_same_bits([&](Backend& backend) { return backend.sum_of_squares(x); });
}

TEST(Determinism, Attention) {
  AttentionShape shape{2, 200, 6, 2, 16};
  int64_t q_size = 400 * 96, kv_size = 400 * 32;
  auto q = random_bf16(1, q_size), k = random_bf16(2, kv_size), v = random_bf16(3, kv_size),
       d_o = random_bf16(4, q_size);
  expect_same_bits([&](Backend& backend) {
    std::vector<bf16> o(q.size()), result(q.size() + 2 * k.size());
    std::vector<std::byte> saved(static_cast<size_t>(backend.attention_saved_bytes(shape)));
    std::vector<std::byte> scratch(static_cast<size_t>(backend.attention_scratch_bytes(shape)));
    backend.attention(shape, q.data(), k.data(), v.data(), o.data(), saved.data(), scratch.data());
    backend.attention_backward(shape, q.data(), k.data(), v.data(), o.data(), d_o.data(),
                               result.data(), result.data() + q_size,
                               result.data() + q_size + kv_size, saved.data(), scratch.data());
    return bits_of(result);
  });
}

TEST(Determinism, CrossEntropyDoesNotDependOnTheThreadCount) {
  auto logits = random_bf16(1, 65 * 300, 5.0f);
  std::vector<int32_t> targets(65, 4);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    auto copy = logits;
    std::vector<float> losses(65);
    make_cpu_backend(threads)->cross_entropy(copy, targets, 300, 1.0f, true, losses);
    results.push_back(losses);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace gnomon
