#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference.h"

namespace gnomon {

size_t AttentionReference::q_at(int64_t b, int64_t t, int h) const {
  return static_cast<size_t>(((b * shape.tokens + t) * shape.heads + h) * shape.head_dim);
}
size_t AttentionReference::kv_at(int64_t b, int64_t t, int h) const {
  int kv_head = h / (shape.heads / shape.kv_heads);
  return static_cast<size_t>(((b * shape.tokens + t) * shape.kv_heads + kv_head) * shape.head_dim);
}

void AttentionReference::forward() {
  int64_t tokens = shape.tokens;
  double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  o.assign(q.size(), 0.0);
  probabilities.assign(static_cast<size_t>(shape.sequences * shape.heads * tokens * tokens), 0.0);
  for (int64_t b = 0; b < shape.sequences; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) {
        double* p = probabilities.data() + ((b * shape.heads + h) * tokens + t) * tokens;
        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t s = 0; s <= t; ++s) {
          for (int i = 0; i < shape.head_dim; ++i)
            p[s] += q[q_at(b, t, h) + i] * k[kv_at(b, s, h) + i];
          p[s] *= scale;
          largest = std::max(largest, p[s]);
        }
        double sum = 0.0;
        for (int64_t s = 0; s <= t; ++s) sum += p[s] = std::exp(p[s] - largest);
        for (int64_t s = 0; s <= t; ++s) {
          p[s] /= sum;
          for (int i = 0; i < shape.head_dim; ++i)
            o[q_at(b, t, h) + i] += p[s] * v[kv_at(b, s, h) + i];
        }
      }
    }
  }
}

void AttentionReference::backward(const Doubles& d_o, Doubles& dq, Doubles& dk, Doubles& dv) const {
  int64_t tokens = shape.tokens;
  double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  dq.assign(q.size(), 0.0);
  dk.assign(k.size(), 0.0);
  dv.assign(v.size(), 0.0);
  for (int64_t b = 0; b < shape.sequences; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) {
        const double* p = probabilities.data() + ((b * shape.heads + h) * tokens + t) * tokens;
        size_t at = q_at(b, t, h);
        double delta = 0.0;
        for (int i = 0; i < shape.head_dim; ++i) delta += d_o[at + i] * o[at + i];
        for (int64_t s = 0; s <= t; ++s) {
          size_t key = kv_at(b, s, h);
          double dp = 0.0;
          for (int i = 0; i < shape.head_dim; ++i) dp += d_o[at + i] * v[key + i];
          double ds = p[s] * (dp - delta) * scale;
          for (int i = 0; i < shape.head_dim; ++i) {
            dv[key + i] += p[s] * d_o[at + i];
            dq[at + i] += ds * k[key + i];
            dk[key + i] += ds * q[at + i];
          }
        }
      }
    }
  }
}

namespace {

struct Buffers {
  std::vector<bf16> q, k, v, d_o, o, dq, dk, dv;
  std::vector<float> saved, scratch;

  Buffers(const Backend& backend, const AttentionShape& shape) {
    int64_t tokens = shape.sequences * shape.tokens;
    int64_t q_size = tokens * shape.heads * shape.head_dim;
    int64_t kv_size = tokens * shape.kv_heads * shape.head_dim;
    q = random_bf16(1, q_size, 3.0f);
    k = random_bf16(2, kv_size, 3.0f);
    v = random_bf16(3, kv_size);
    d_o = random_bf16(4, q_size);
    bf16 poison = to_bf16(std::numeric_limits<float>::quiet_NaN());
    o.assign(q.size(), poison);
    dq.assign(q.size(), poison);
    dk.assign(k.size(), poison);
    dv.assign(k.size(), poison);
    saved.resize(static_cast<size_t>(backend.attention_saved_bytes(shape)) / sizeof(float));
    scratch.assign(static_cast<size_t>(backend.attention_scratch_bytes(shape)) / sizeof(float),
                   std::numeric_limits<float>::quiet_NaN());
  }
  std::byte* saved_bytes() { return reinterpret_cast<std::byte*>(saved.data()); }
  std::byte* scratch_bytes() { return reinterpret_cast<std::byte*>(scratch.data()); }

  void run(Backend& backend, const AttentionShape& shape) {
    backend.attention(shape, q.data(), k.data(), v.data(), o.data(), saved_bytes(),
                      scratch_bytes());
    std::ranges::fill(scratch, std::numeric_limits<float>::quiet_NaN());
    backend.attention_backward(shape, q.data(), k.data(), v.data(), o.data(), d_o.data(), dq.data(),
                               dk.data(), dv.data(), saved_bytes(), scratch_bytes());
  }
};

// {sequences, tokens, heads, kv_heads, head_dim}: one block and several, whole and cut, grouped and
// not.
const std::vector<AttentionShape> kShapes = {
    {1, 1, 1, 1, 1},
    {2, 5, 3, 1, 4},
    {1, 33, 4, 2, 7},
    {3, 64, 2, 2, 16},
    {1, 128, 1, 1, 8},
    {1, 129, 2, 1, 32},
    {2, 256, 5, 5, 64},
    {1, 300, 4, 2, 24},
    // Widths that the AVX512 kernel takes.
    {2, 1, 2, 1, 32},
    {1, 3, 2, 2, 64},
    {3, 64, 4, 2, 32},
    {1, 65, 2, 1, 128},
    {2, 70, 3, 1, 64},
    {1, 200, 2, 2, 96},
    {1, 97, 1, 1, 256},
};

AttentionReference reference_for(const Buffers& buffers, const AttentionShape& shape) {
  return {shape, doubles(buffers.q), doubles(buffers.k), doubles(buffers.v), {}, {}};
}

// The probabilities and their gradients pass through BF16 on their way into the second product.
constexpr double kTwoRoundings = 2 * kBf16NormError;

TEST(Attention, ForwardAndBackwardEqualTheReference) {
  for (const AttentionShape& shape : kShapes) {
    AttentionReference reference = reference_for(Buffers(*make_cpu_backend(1), shape), shape);
    reference.forward();
    Doubles d_o = doubles(random_bf16(4, std::ssize(reference.q))), dq, dk, dv;
    reference.backward(d_o, dq, dk, dv);
    for (int threads : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << shape.tokens << " tokens, " << threads << " threads");
      auto backend = make_cpu_backend(threads);
      Buffers buffers(*backend, shape);
      buffers.run(*backend, shape);
      expect_close(reference.o, buffers.o, kTwoRoundings);
      expect_close(dv, buffers.dv, kTwoRoundings);
      if (shape.tokens == 1) continue;  // one key: dq and dk are zero
      expect_close(dq, buffers.dq, 2 * kTwoRoundings);
      expect_close(dk, buffers.dk, 2 * kTwoRoundings);
    }
  }
}

TEST(Attention, GradientsEqualFiniteDifferences) {
  auto backend = make_cpu_backend(2);
  AttentionShape shape{1, 140, 2, 1, 8};
  Buffers buffers(*backend, shape);
  buffers.run(*backend, shape);
  AttentionReference reference = reference_for(buffers, shape);
  Doubles d_o = doubles(buffers.d_o);
  auto loss = [&] {
    reference.forward();
    return dot(d_o, reference.o);
  };
  auto check = [&](Doubles& x, const std::vector<bf16>& gradient) {
    Doubles expected, got;
    for (size_t i = 3; i < x.size(); i += x.size() / 48) {
      expected.push_back(finite_difference(loss, x, i));
      got.push_back(to_float(gradient[i]));
    }
    expect_close(expected, got, 2 * kTwoRoundings);
  };
  check(reference.q, buffers.dq);
  check(reference.k, buffers.dk);
  check(reference.v, buffers.dv);
}

TEST(Attention, NoTokenSeesALaterOne) {
  auto backend = make_cpu_backend(2);
  AttentionShape shape{1, 200, 2, 2, 16};
  Buffers buffers(*backend, shape);
  buffers.run(*backend, shape);
  auto before = buffers.o;
  constexpr int64_t kChanged = 131;
  int64_t width = int64_t{shape.heads} * shape.head_dim;
  for (int64_t i = kChanged * width; i < shape.tokens * width; ++i) {
    buffers.k[i] = to_bf16(50.0f);
    buffers.v[i] = to_bf16(1e30f);
  }
  buffers.run(*backend, shape);
  for (int64_t i = 0; i < kChanged * width; ++i)
    ASSERT_EQ(buffers.o[i].bits, before[i].bits) << i / width;
  EXPECT_NE(buffers.o[kChanged * width].bits, before[kChanged * width].bits);
}

TEST(Attention, LargeScoresAreStable) {
  auto backend = make_cpu_backend(2);
  AttentionShape shape{1, 40, 1, 1, 16};
  Buffers buffers(*backend, shape);
  for (bf16& value : buffers.q) value = to_bf16(to_float(value) * 1e4f);
  for (bf16& value : buffers.k) value = to_bf16(to_float(value) * 1e4f);
  buffers.run(*backend, shape);
  AttentionReference reference = reference_for(buffers, shape);
  reference.forward();
  expect_close(reference.o, buffers.o, kTwoRoundings);
}

// q, k and v side by side in one matrix, their gradients in another with rows further apart.
TEST(Attention, StridedMatricesGiveTheSameBits) {
  auto backend = make_cpu_backend(2);
  for (AttentionShape shape : {AttentionShape{2, 70, 4, 2, 32}, {2, 70, 4, 2, 6}}) {
    Buffers dense(*backend, shape);
    dense.run(*backend, shape);
    const int64_t n = shape.sequences * shape.tokens;
    const int64_t widths[3] = {int64_t{shape.heads} * shape.head_dim,
                               int64_t{shape.kv_heads} * shape.head_dim,
                               int64_t{shape.kv_heads} * shape.head_dim};
    const int64_t width = widths[0] + widths[1] + widths[2];
    shape.stride_q = shape.stride_kv = width;
    shape.stride_dq = width + 10;
    shape.stride_dkv = width + 20;
    const bf16 untouched = to_bf16(-7.0f);
    std::vector<bf16> qkv(static_cast<size_t>(n * width));
    std::vector<bf16> gradients(static_cast<size_t>(n * (width + 20)), untouched);
    std::vector<bf16> query_gradients(static_cast<size_t>(n * (width + 10)), untouched);
    const std::vector<bf16>* parts[3] = {&dense.q, &dense.k, &dense.v};
    for (int64_t row = 0; row < n; ++row) {
      bf16* to = qkv.data() + row * width;
      for (int part = 0; part < 3; ++part) {
        to = std::copy_n(parts[part]->data() + row * widths[part], widths[part], to);
      }
    }
    std::vector<bf16> o(dense.o.size());
    const bf16* q = qkv.data();
    bf16* dk = gradients.data();
    backend->attention(shape, q, q + widths[0], q + widths[0] + widths[1], o.data(),
                       dense.saved_bytes(), dense.scratch_bytes());
    backend->attention_backward(shape, q, q + widths[0], q + widths[0] + widths[1], o.data(),
                                dense.d_o.data(), query_gradients.data(), dk, dk + widths[1],
                                dense.saved_bytes(), dense.scratch_bytes());
    EXPECT_EQ(bits_of(o), bits_of(dense.o));
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < widths[0]; ++i) {
        ASSERT_EQ(query_gradients[row * shape.stride_dq + i].bits,
                  dense.dq[row * widths[0] + i].bits);
      }
      for (int64_t i = 0; i < widths[1]; ++i) {
        int64_t at = row * shape.stride_dkv + i;
        ASSERT_EQ(gradients[at].bits, dense.dk[row * widths[1] + i].bits);
        ASSERT_EQ(gradients[at + widths[1]].bits, dense.dv[row * widths[1] + i].bits);
      }
      ASSERT_EQ(query_gradients[row * shape.stride_dq + widths[0]].bits, untouched.bits);
      ASSERT_EQ(gradients[row * shape.stride_dkv + 2 * widths[1]].bits, untouched.bits);
    }
  }
}

}  // namespace
}  // namespace gnomon
