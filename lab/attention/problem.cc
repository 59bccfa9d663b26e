#include "lab/attention/problem.h"

#include <fmt/format.h>

#include <cmath>

#include "base/errors.h"
#include "base/philox.h"

namespace gnomon {
namespace {

std::vector<bf16> uniform(uint64_t seed, uint32_t stream, int64_t count, float amplitude) {
  std::vector<bf16> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i += 4) {
    const auto words = philox(seed, stream, static_cast<uint64_t>(i / 4));
    for (int64_t j = i; j < std::min(i + 4, count); ++j) {
      const float x = philox_uniform(words[static_cast<size_t>(j - i)]);
      values[static_cast<size_t>(j)] = to_bf16(amplitude * (2.0f * x - 1.0f));
    }
  }
  return values;
}

// [tokens, width] of doubles, from some columns of a sequence's rows.
std::vector<double> columns(const std::vector<bf16>& matrix, const AttentionCase& problem,
                            int64_t row_width, int64_t sequence, int64_t first, int64_t width) {
  std::vector<double> result;
  result.reserve(static_cast<size_t>(problem.tokens * width));
  for (int64_t token = 0; token < problem.tokens; ++token) {
    const int64_t row = (sequence * problem.tokens + token) * row_width + first;
    for (int64_t i = 0; i < width; ++i) {
      result.push_back(static_cast<double>(to_float(matrix[static_cast<size_t>(row + i)])));
    }
  }
  return result;
}

struct ProblemRows {
  const double* data;
  int64_t stride, width;
  const double* operator[](int64_t row) const { return data + row * stride; }
  double dot(int64_t row, const double* with) const {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += (*this)[row][i] * with[i];
    return sum;
  }
};

void add(double factor, const double* row, int64_t width, double* to) {
  for (int64_t i = 0; i < width; ++i) to[i] += factor * row[i];
}

// What one query gives to the gradients of the keys and values before it.
struct Weights {
  std::vector<double> share, d_score;  // for each of them
};

// The first tokens' weights, [tokens] triangles, for one head; fills o and dq.
std::vector<Weights> weights_of(int64_t tokens, const ProblemRows& q, const ProblemRows& k,
                                const ProblemRows& v, const ProblemRows& d_o, double* o, double* dq,
                                int64_t stride, int threads) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.width));
  std::vector<Weights> all(static_cast<size_t>(tokens));
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
  for (int64_t t = 0; t < tokens; ++t) {
    Weights& at = all[static_cast<size_t>(t)];
    double largest = -HUGE_VAL, sum = 0, delta = 0;
    for (int64_t j = 0; j <= t; ++j) {
      at.share.push_back(scale * k.dot(j, q[t]));
      at.d_score.push_back(v.dot(j, d_o[t]));
      largest = std::max(largest, at.share.back());
    }
    for (double& share : at.share) sum += share = std::exp(share - largest);
    for (size_t j = 0; j < at.share.size(); ++j) {
      at.share[j] /= sum;
      delta += at.share[j] * at.d_score[j];
    }
    for (size_t j = 0; j < at.share.size(); ++j) {
      at.d_score[j] = at.share[j] * (at.d_score[j] - delta) * scale;
      add(at.share[j], v[static_cast<int64_t>(j)], q.width, o + t * stride);
      add(at.d_score[j], k[static_cast<int64_t>(j)], q.width, dq + t * stride);
    }
  }
  return all;
}

}  // namespace

std::string AttentionCase::name() const {
  return fmt::format("{} × {} tokens, {} heads of {} over {}", sequences, tokens, heads, head_dim,
                     kv_heads);
}

AttentionShape AttentionCase::shape() const {
  return {.sequences = sequences,
          .tokens = tokens,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .stride_q = row_width(),
          .stride_kv = row_width(),
          .stride_dq = row_width(),
          .stride_dkv = row_width()};
}

std::vector<AttentionCase> default_attention_cases() {
  return {{1, 64, 1, 1, 64},     {2, 200, 4, 2, 64},    {3, 333, 6, 3, 72},
          {1, 1024, 8, 1, 128},  {2, 512, 4, 4, 256},   {4, 1024, 12, 12, 64},
          {2, 2048, 16, 4, 128}, {4, 4096, 32, 8, 128}, {1, 8192, 32, 8, 128}};
}

AttentionInputs attention_inputs(const AttentionCase& problem, uint64_t seed) {
  return {.qkv = uniform(seed, 1, problem.rows() * problem.row_width(), 1.7f),
          .d_o = uniform(seed, 2, problem.rows() * problem.width(), 1.0f)};
}

AttentionGroup exact_group(const AttentionCase& problem, const AttentionInputs& inputs,
                           int64_t sequence, int kv_head, int threads) {
  const int64_t tokens = problem.tokens, d = problem.head_dim;
  const int64_t group = problem.heads / problem.kv_heads, width = group * d;
  const auto some = [&](int64_t first, int64_t count) {
    return columns(inputs.qkv, problem, problem.row_width(), sequence, first, count);
  };
  const auto q = some(kv_head * width, width), k = some(problem.width() + kv_head * d, d);
  const auto v = some(problem.width() + (problem.kv_heads + kv_head) * d, d);
  const auto d_o = columns(inputs.d_o, problem, problem.width(), sequence, kv_head * width, width);
  AttentionGroup result;
  for (auto* wide : {&result.o, &result.dq}) wide->resize(q.size());
  for (auto* narrow : {&result.dk, &result.dv}) narrow->resize(k.size());
  for (int64_t head = 0; head < group; ++head) {
    const ProblemRows of_q{q.data() + head * d, width, d}, of_d_o{d_o.data() + head * d, width, d};
    const auto weights =
        weights_of(tokens, of_q, {k.data(), d, d}, {v.data(), d, d}, of_d_o,
                   result.o.data() + head * d, result.dq.data() + head * d, width, threads);
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
    for (int64_t j = 0; j < tokens; ++j) {
      for (int64_t t = j; t < tokens; ++t) {
        const Weights& at = weights[static_cast<size_t>(t)];
        add(at.d_score[static_cast<size_t>(j)], of_q[t], d, result.dk.data() + j * d);
        add(at.share[static_cast<size_t>(j)], of_d_o[t], d, result.dv.data() + j * d);
      }
    }
  }
  return result;
}

AttentionGroup group_of(const AttentionCase& problem, const AttentionResults& results,
                        int64_t sequence, int kv_head) {
  const int64_t d = problem.head_dim, width = problem.heads / problem.kv_heads * d;
  const auto gradient = [&](int64_t first, int64_t count) {
    return columns(results.d_qkv, problem, problem.row_width(), sequence, first, count);
  };
  return {.o = columns(results.o, problem, problem.width(), sequence, kv_head * width, width),
          .dq = gradient(kv_head * width, width),
          .dk = gradient(problem.width() + kv_head * d, d),
          .dv = gradient(problem.width() + (problem.kv_heads + kv_head) * d, d)};
}

double attention_difference(std::span<const double> x, std::span<const double> y) {
  GNOMON_ASSERT(x.size() == y.size());
  double product = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    product += x[i] * y[i];
    squares += x[i] * x[i] + y[i] * y[i];
  }
  if (!std::isfinite(product) || !std::isfinite(squares)) return 1;
  return squares == 0 ? 0 : 1 - 2 * product / squares;
}

}  // namespace gnomon
