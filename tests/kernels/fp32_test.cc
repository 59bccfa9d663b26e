// Every operation of the backend for FP32 elements against FP64, to FP32's own precision: an
// intermediate value that passed through BF16 anywhere would be three decimals away.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

constexpr double kTolerance = 2e-6;

class Fp32Backend : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<BackendOf<float>> backend = make_cpu_backend<float>(GetParam());
};

TEST_P(Fp32Backend, GemmInEveryLayoutWithAlphaAndAccumulation) {
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      GemmShape shape{65, 33, 129, transpose_a, transpose_b};
      auto a = random_floats(1, shape.m * shape.k), b = random_floats(2, shape.k * shape.n);
      auto c = random_floats(3, shape.m * shape.n);
      Doubles product(c.size()), sum = doubles(c);
      for (int64_t i = 0; i < shape.m; ++i) {
        for (int64_t j = 0; j < shape.n; ++j) {
          for (int64_t l = 0; l < shape.k; ++l) {
            product[i * shape.n + j] +=
                static_cast<double>(transpose_a ? a[l * shape.m + i] : a[i * shape.k + l]) *
                static_cast<double>(transpose_b ? b[j * shape.k + l] : b[l * shape.n + j]);
          }
        }
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += 0.375 * product[i];
      backend->gemm(shape, 0.375f, a.data(), b.data(), c.data(), true);
      expect_close(sum, c, kTolerance);
      backend->gemm(shape, 1.0f, a.data(), b.data(), c.data());
      expect_close(product, c, kTolerance);
    }
  }
}

TEST_P(Fp32Backend, AttentionForwardAndBackward) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 5, 3, 1, 4}, {1, 129, 4, 2, 32}, {1, 256, 1, 1, 64}}) {
    int64_t q_size = shape.sequences * shape.tokens * shape.heads * shape.head_dim;
    int64_t kv_size = q_size / shape.heads * shape.kv_heads;
    auto q = random_floats(1, q_size, 3.0f), k = random_floats(2, kv_size, 3.0f);
    auto v = random_floats(3, kv_size), d_o = random_floats(4, q_size);
    AttentionReference reference{shape, doubles(q), doubles(k), doubles(v), {}, {}};
    reference.forward();
    Doubles dq_expected, dk_expected, dv_expected;
    reference.backward(doubles(d_o), dq_expected, dk_expected, dv_expected);
    std::vector<float> o(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
    std::vector<std::byte> saved(static_cast<size_t>(backend->attention_saved_bytes(shape)));
    std::vector<std::byte> scratch(static_cast<size_t>(backend->attention_scratch_bytes(shape)));
    backend->attention(shape, q.data(), k.data(), v.data(), o.data(), saved.data(), scratch.data());
    backend->attention_backward(shape, q.data(), k.data(), v.data(), o.data(), d_o.data(),
                                dq.data(), dk.data(), dv.data(), saved.data(), scratch.data());
    expect_close(reference.o, o, kTolerance);
    expect_close(dq_expected, dq, 2 * kTolerance);
    expect_close(dk_expected, dk, 2 * kTolerance);
    expect_close(dv_expected, dv, kTolerance);
  }
}

TEST_P(Fp32Backend, NormForwardAndBackward) {
  constexpr int64_t kRows = 7, kWidth = 45;
  auto residual = random_floats(1, kRows * kWidth), x = random_floats(2, kRows * kWidth);
  auto w = random_floats(3, kWidth), dy = random_floats(4, kRows * kWidth);
  Doubles sum = doubles(residual), w64 = doubles(w), dy64 = doubles(dy);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(x[i]);
  std::vector<float> y(x.size()), rstd(kRows), d_residual(x.size()), dw(kWidth);
  backend->add_rms_norm(residual, x, w, 1e-5f, residual, y, rstd);
  expect_close(sum, residual, kTolerance);
  expect_close(reference_norm(sum, w64), y, kTolerance);
  backend->rms_norm_backward(residual, w, rstd, dy, d_residual, dw);
  auto loss = [&] { return dot(dy64, reference_norm(sum, w64)); };
  expect_close(finite_differences(loss, sum), d_residual, kTolerance);
  expect_close(finite_differences(loss, w64), dw, kTolerance);
}

TEST_P(Fp32Backend, SwigluForwardAndBackward) {
  auto gate = random_floats(1, 301, 6.0f), up = random_floats(2, 301), dy = random_floats(3, 301);
  std::vector<float> y(gate.size()), dgate(gate.size()), dup(gate.size());
  backend->swiglu(gate.data(), up.data(), 7, 43, 0, y.data());
  backend->swiglu_backward(gate.data(), up.data(), dy.data(), 7, 43, 0, dgate.data(), dup.data(),
                           0);
  Doubles expected, dgate_expected, dup_expected;
  for (size_t i = 0; i < gate.size(); ++i) {
    double g = gate[i], u = up[i], d = dy[i];
    double s = 1.0 / (1.0 + std::exp(-g));
    expected.push_back(g * s * u);
    dgate_expected.push_back(d * u * s * (1.0 + g * (1.0 - s)));
    dup_expected.push_back(d * g * s);
  }
  expect_close(expected, y, kTolerance);
  expect_close(dgate_expected, dgate, kTolerance);
  expect_close(dup_expected, dup, kTolerance);
}

TEST_P(Fp32Backend, RopeTurnsEachPair) {
  constexpr int64_t kTokens = 9;
  constexpr int kHeads = 2, kDim = 6;
  auto x = random_floats(1, 2 * kTokens * kHeads * kDim);
  Doubles expected = doubles(x);
  for (int64_t row = 0; row < 2 * kTokens; ++row) {
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kDim / 2; ++i) {
        int64_t at = (row * kHeads + head) * kDim + i;
        double angle = static_cast<double>(row % kTokens) * std::pow(500.0, -2.0 * i / kDim);
        double a = x[at], b = x[at + kDim / 2];
        expected[at] = a * std::cos(angle) - b * std::sin(angle);
        expected[at + kDim / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  backend->rope(x.data(), 2 * kTokens, kTokens, kHeads, kDim, {.theta = 500.0}, false, 0);
  expect_close(expected, x, kTolerance);
}

TEST_P(Fp32Backend, BiasAndSumsAreAddedInFp32) {
  constexpr int64_t kRows = 37, kWidth = 31;
  auto y = random_floats(1, kRows * kWidth), bias = random_floats(2, kWidth);
  std::vector<float> db(kWidth), copy(y.size());
  Doubles expected = doubles(y), expected_db(kWidth);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected_db[i % kWidth] += static_cast<double>(y[i]);
    expected[i] += static_cast<double>(bias[i % kWidth]);
  }
  backend->bias_backward(y.data(), kRows, db, 0);
  backend->add_bias(y.data(), kRows, bias, 0);
  expect_close(expected_db, db, kTolerance);
  expect_close(expected, y, kTolerance);
  backend->round_sum(y, copy);
  EXPECT_EQ(copy, y);
}

TEST_P(Fp32Backend, EmbeddingAndItsGradient) {
  constexpr int64_t kWidth = 19;
  auto table = random_floats(1, 10 * kWidth), gradient = random_floats(2, 4 * kWidth);
  std::vector<int32_t> tokens = {9, 0, 3, 3};
  std::vector<float> y(4 * kWidth), d_table(table.size());
  backend->embed(tokens, table, kWidth, y);
  backend->embed_backward(tokens, gradient, kWidth, d_table);
  Doubles expected(table.size());
  for (int64_t i = 0; i < 4 * kWidth; ++i) {
    int64_t at = tokens[i / kWidth] * kWidth + i % kWidth;
    EXPECT_EQ(y[i], table[at]);
    expected[at] += static_cast<double>(gradient[i]);
  }
  expect_close(expected, d_table, kTolerance);
}

TEST_P(Fp32Backend, CrossEntropyAndItsGradient) {
  constexpr int64_t kRows = 5, kVocabulary = 37;
  auto logits = random_floats(1, kRows * kVocabulary, 4.0f);
  std::vector<int32_t> targets = {5, 36, 0, -1, 7};
  Doubles x = doubles(logits), expected_losses, expected;
  for (int64_t row = 0; row < kRows; ++row) {
    double sum = 0.0;
    for (int64_t i = 0; i < kVocabulary; ++i) sum += std::exp(x[row * kVocabulary + i]);
    bool ignored = targets[row] < 0;
    expected_losses.push_back(ignored ? 0.0 : std::log(sum) - x[row * kVocabulary + targets[row]]);
    for (int64_t i = 0; i < kVocabulary; ++i) {
      double p = std::exp(x[row * kVocabulary + i]) / sum - (i == targets[row] ? 1.0 : 0.0);
      expected.push_back(ignored ? 0.0 : 0.25 * p);
    }
  }
  std::vector<float> losses(kRows);
  backend->cross_entropy(logits, targets, kVocabulary, 0.25f, true, losses);
  expect_close(expected_losses, losses, kTolerance);
  expect_close(expected, logits, kTolerance);
}

TEST_P(Fp32Backend, AdamwWritesTheMasterItselfAsWeight) {
  auto gradient = random_floats(1, 5000), master = random_floats(2, 5000);
  std::vector<float> m(5000), v(5000), weight(5000);
  UpdateStep step{1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 1.0f};
  std::vector<float> before = master;
  backend->update(step, gradient, {m, v}, master, weight);
  EXPECT_EQ(weight, master);
  EXPECT_NE(master, before);
}

INSTANTIATE_TEST_SUITE_P(Threads, Fp32Backend, testing::Values(1, 2, 3),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace gnomon
