// Each operation of the CPU backend at the shapes of the 10M model (8 × 256 tokens, width 320, 5
// heads, FFN 864, vocabulary 2048), and those of the 100M model (4 × 512, 768, 12, 2048, 16384)
// that behave otherwise, on one thread and in CPU time, so that other work on the machine disturbs
// little.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/hopper_accumulate.h"
#include "kernels/cpu/ops.h"

namespace gnomon {
namespace {

constexpr int64_t kTokens = 2048, kWidth = 320, kFfn = 864, kVocabulary = 2048;
constexpr AttentionShape kAttention{8, 256, 5, 5, 64};

std::vector<bf16> values(int64_t count) {
  std::vector<bf16> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    x[i] = to_bf16(static_cast<float>(i * 37 % 1009 - 504) * 2e-3f);
  return x;
}

void report_bytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void report_flops(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
}

void gemm(benchmark::State& state, GemmShape shape, bool fp32_output) {
  auto backend = make_cpu_backend(1);
  auto a = values(shape.m * shape.k), b = values(shape.k * shape.n), c = values(shape.m * shape.n);
  std::vector<float> sums(c.size());
  for (auto _ : state) {
    if (fp32_output) {
      backend->gemm(shape, 0.5f, a.data(), b.data(), sums.data(), true);
    } else {
      backend->gemm(shape, 0.5f, a.data(), b.data(), c.data());
    }
  }
  report_flops(state, 2.0 * static_cast<double>(shape.m * shape.n * shape.k));
}
BENCHMARK_CAPTURE(gemm, head_fprop, GemmShape{kTokens, kVocabulary, kWidth, false, true}, false);
BENCHMARK_CAPTURE(gemm, gate_fprop, GemmShape{kTokens, kFfn, kWidth, false, true}, false);
BENCHMARK_CAPTURE(gemm, down_fprop, GemmShape{kTokens, kWidth, kFfn, false, true}, false);
BENCHMARK_CAPTURE(gemm, q_fprop, GemmShape{kTokens, kWidth, kWidth, false, true}, false);
BENCHMARK_CAPTURE(gemm, gate_dgrad, GemmShape{kTokens, kWidth, kFfn, false, false}, true);
BENCHMARK_CAPTURE(gemm, q_dgrad, GemmShape{kTokens, kWidth, kWidth, false, false}, true);
BENCHMARK_CAPTURE(gemm, gate_wgrad, GemmShape{kFfn, kWidth, kTokens, true, false}, true);
BENCHMARK_CAPTURE(gemm, q_wgrad, GemmShape{kWidth, kWidth, kTokens, true, false}, true);

// Scales by tile and Hopper's sums, beside gate_fprop: E4M3, blocks of 128 along the sum.
void scaled_gemm(benchmark::State& state, Accumulation accumulation) {
  cpu::ScaledProducts products(1);
  const GemmShape shape{kTokens, kFfn, kWidth, false, true};
  auto x = values(shape.m * shape.k), w = values(shape.n * shape.k), c = values(shape.m * shape.n);
  auto a = x, b = w;
  const Quantizer row{Format::kE4m3, {1, 128}, ScaleRule::kFp32};
  const Quantizer square{Format::kE4m3, {128, 128}, ScaleRule::kFp32};
  std::vector<float> a_scales(static_cast<size_t>(tile_grid(row, shape.m, shape.k).count()));
  std::vector<float> b_scales(static_cast<size_t>(tile_grid(square, shape.n, shape.k).count()));
  cpu::quantize_tiles(1, row, {}, x, shape.m, shape.k, a, a_scales);
  cpu::quantize_tiles(1, square, {}, w, shape.n, shape.k, b, b_scales);
  for (auto _ : state) {
    products.run(shape, accumulation, {a.data(), row, a_scales.data()},
                 {b.data(), square, b_scales.data()}, c.data(), false);
  }
  report_flops(state, 2.0 * static_cast<double>(shape.m * shape.n * shape.k));
}
BENCHMARK_CAPTURE(scaled_gemm, fp32, Accumulation{});
BENCHMARK_CAPTURE(scaled_gemm, hopper_128, Accumulation{true, 128});
BENCHMARK_CAPTURE(scaled_gemm, hopper_32, Accumulation{true, 32});

// fprop, dgrad and wgrad of the sites of the 100M model, as a step without FP8 runs them.
#define GNOMON_SITE(name, in, out)                                                        \
  BENCHMARK_CAPTURE(gemm, name##_fprop, GemmShape{kTokens, out, in, false, true}, false)  \
      ->Unit(benchmark::kMillisecond);                                                    \
  BENCHMARK_CAPTURE(gemm, name##_dgrad, GemmShape{kTokens, in, out, false, false}, false) \
      ->Unit(benchmark::kMillisecond);                                                    \
  BENCHMARK_CAPTURE(gemm, name##_wgrad, GemmShape{out, in, kTokens, true, false}, true)   \
      ->Unit(benchmark::kMillisecond);
GNOMON_SITE(large_qkv, 768, 2304)
GNOMON_SITE(large_o, 768, 768)
GNOMON_SITE(large_gate_up, 768, 4096)
GNOMON_SITE(large_down, 2048, 768)
GNOMON_SITE(large_head, 768, 16384)
#undef GNOMON_SITE

void amax(benchmark::State& state) {
  auto x = values(kTokens * kFfn);
  for (auto _ : state) benchmark::DoNotOptimize(cpu::amax(1, x));
  report_bytes(state, std::ssize(x) * 2);
}
BENCHMARK(amax);

void quantize(benchmark::State& state, Format format) {
  auto x = values(kTokens * kFfn), y = x;
  for (auto _ : state) benchmark::DoNotOptimize(cpu::quantize(1, x, format, 300.0f, y));
  report_bytes(state, std::ssize(x) * 4);
}
BENCHMARK_CAPTURE(quantize, e4m3, Format::kE4m3);
BENCHMARK_CAPTURE(quantize, e5m2, Format::kE5m2);

void copy(benchmark::State& state) {
  auto x = values(kTokens * kFfn), y = x;
  for (auto _ : state) {
    std::copy(x.begin(), x.end(), y.begin());
    benchmark::ClobberMemory();
  }
  report_bytes(state, std::ssize(x) * 4);
}
BENCHMARK(copy);

void round_sum(benchmark::State& state) {
  auto backend = make_cpu_backend(1);
  std::vector<float> x(kTokens * kWidth, 1.5f);
  auto y = values(kTokens * kWidth);
  for (auto _ : state) backend->round_sum(x, y);
  report_bytes(state, std::ssize(x) * 6);
}
BENCHMARK(round_sum);

void rms_norm(benchmark::State& state, bool backward) {
  auto backend = make_cpu_backend(1);
  auto residual = values(kTokens * kWidth), x = residual, y = residual, dx = residual,
       w = values(kWidth);
  std::vector<float> rstd(kTokens), dw(kWidth);
  std::fill(x.begin(), x.end(), bf16{});
  for (auto _ : state) {
    if (backward) {
      backend->rms_norm_backward(residual, w, rstd, y, dx, dw);
    } else {
      backend->add_rms_norm(residual, x, w, 1e-5f, residual, y, rstd);
    }
  }
  report_bytes(state, std::ssize(x) * 8);
}
BENCHMARK_CAPTURE(rms_norm, forward, false);
BENCHMARK_CAPTURE(rms_norm, backward, true);

void rope(benchmark::State& state) {
  auto backend = make_cpu_backend(1);
  auto x = values(kTokens * kWidth);
  for (auto _ : state) backend->rope(x.data(), kTokens, 256, 5, 64, {.theta = 10000.0}, false, 0);
  report_bytes(state, std::ssize(x) * 4);
}
BENCHMARK(rope);

void swiglu(benchmark::State& state, bool backward) {
  auto backend = make_cpu_backend(1);
  auto gate = values(kTokens * kFfn), up = gate, y = gate, dgate = gate, dup = gate;
  for (auto _ : state) {
    if (backward) {
      backend->swiglu_backward(gate.data(), up.data(), y.data(), kTokens, kFfn, 0, dgate.data(),
                               dup.data(), 0);
    } else {
      backend->swiglu(gate.data(), up.data(), kTokens, kFfn, 0, y.data());
    }
  }
  report_bytes(state, std::ssize(gate) * (backward ? 10 : 6));
}
BENCHMARK_CAPTURE(swiglu, forward, false);
BENCHMARK_CAPTURE(swiglu, backward, true);

void attention(benchmark::State& state, bool backward) {
  auto backend = make_cpu_backend(1);
  auto q = values(kTokens * kWidth), k = q, v = q, o = q, d_o = q, dq = q, dk = q, dv = q;
  std::vector<std::byte> saved(static_cast<size_t>(backend->attention_saved_bytes(kAttention)));
  std::vector<std::byte> scratch(static_cast<size_t>(backend->attention_scratch_bytes(kAttention)));
  backend->attention(kAttention, q.data(), k.data(), v.data(), o.data(), saved.data(),
                     scratch.data());
  for (auto _ : state) {
    if (backward) {
      backend->attention_backward(kAttention, q.data(), k.data(), v.data(), o.data(), d_o.data(),
                                  dq.data(), dk.data(), dv.data(), saved.data(), scratch.data());
    } else {
      backend->attention(kAttention, q.data(), k.data(), v.data(), o.data(), saved.data(),
                         scratch.data());
    }
  }
  // Two products forward and four backward, half of each masked away.
  report_flops(state, (backward ? 4.0 : 2.0) * 256 * kTokens * kWidth);
}
BENCHMARK_CAPTURE(attention, forward, false);
BENCHMARK_CAPTURE(attention, backward, true);

void cross_entropy(benchmark::State& state) {
  auto backend = make_cpu_backend(1);
  auto logits = values(kTokens * kVocabulary);
  std::vector<int32_t> targets(kTokens, 5);
  std::vector<float> losses(kTokens);
  for (auto _ : state) backend->cross_entropy(logits, targets, kVocabulary, 1e-3f, true, losses);
  report_bytes(state, std::ssize(logits) * 4);
}
BENCHMARK(cross_entropy);

void adamw(benchmark::State& state) {
  auto backend = make_cpu_backend(1);
  constexpr size_t kSize = 10'000'000;
  std::vector<float> gradient(kSize, 1e-3f), m(kSize, 1e-3f), v(kSize, 1e-6f), master(kSize, 0.1f);
  std::vector<bf16> weight(kSize);
  UpdateStep step{1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f};
  for (auto _ : state) backend->update(step, gradient, {m, v}, master, weight);
  report_bytes(state, int64_t{kSize} * 30);
}
BENCHMARK(adamw)->Unit(benchmark::kMillisecond);

void sum_of_squares(benchmark::State& state) {
  auto backend = make_cpu_backend(1);
  std::vector<float> x(10'000'000, 1e-3f);
  for (auto _ : state) benchmark::DoNotOptimize(backend->sum_of_squares(x));
  report_bytes(state, std::ssize(x) * 4);
}
BENCHMARK(sum_of_squares);

}  // namespace
}  // namespace gnomon

BENCHMARK_MAIN();
