#include "lab/bench/step_gemms.h"

#include <algorithm>

#include "base/errors.h"
#include "base/philox.h"
#include "kernels/cpu/gemm.h"
#include "kernels/tensor.h"
#include "trainer/engine/architecture.h"

namespace gnomon {
namespace {

// fprop, dgrad and wgrad of a weight [out, in], BF16 outputs and FP32 gradients.
void add_gemms(int64_t n, int64_t in, int64_t out, double count, std::vector<StepGemm>& gemms) {
  gemms.push_back({{.m = n, .n = out, .k = in, .transpose_b = true}, false, count});
  gemms.push_back({{.m = n, .n = in, .k = out}, false, count});
  gemms.push_back({{.m = out, .n = in, .k = n, .transpose_a = true}, true, count});
}

// The most elements that A, B and C have.
struct Sizes {
  explicit Sizes(const std::vector<StepGemm>& gemms) {
    for (const StepGemm& gemm : gemms) {
      const GemmShape& shape = gemm.shape;
      a = std::max(a, shape.m * shape.k);
      b = std::max(b, shape.k * shape.n);
      const int64_t bytes = gemm.fp32_output ? 4 : 2;
      c_bytes = std::max(c_bytes, shape.m * shape.n * bytes);
    }
  }
  int64_t a = 0, b = 0, c_bytes = 0;
};

}  // namespace

std::vector<StepGemm> gemms_of_step(const EngineConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t n = int64_t{1} * config.batch.sequences * config.batch.tokens;
  const double batches = config.batch.accumulation;
  const double layers = batches * model.layers;
  const int64_t head_rows = std::min(n, config.memory.rows_of_logits(model, n));
  std::vector<StepGemm> gemms;
  add_gemms(head_rows, model.width, model.vocabulary,
            batches * static_cast<double>(n) / static_cast<double>(head_rows), gemms);
  for (const LayerProduct& it : layer_products(model)) add_gemms(n, it.in, it.out, layers, gemms);
  return gemms;
}

size_t largest_gemm(const std::vector<StepGemm>& gemms) {
  const auto by_flops = [](const StepGemm& x, const StepGemm& y) { return x.flops() < y.flops(); };
  return static_cast<size_t>(std::ranges::max_element(gemms, by_flops) - gemms.begin());
}

struct PlainGemms::Room {
  explicit Room(int thread_count)
      : threads(thread_count), engine(dnnl::engine::kind::cpu, 0), stream(engine) {}

  int threads;
  dnnl::engine engine;
  dnnl::stream stream;
  std::vector<std::unique_ptr<cpu::Matmul>> products;
  cpu::GrowingScratch scratch;
  Arena arena{"gemm"};
  std::span<bf16> a, b;
  std::span<std::byte> c;
};

PlainGemms::PlainGemms(const std::vector<StepGemm>& gemms, int threads)
    : room_(std::make_unique<Room>(threads)) {
  Room& room = *room_;
  const Sizes most(gemms);
  for (bool committed : {false, true}) {
    room.a = room.arena.allocate<bf16>(most.a);
    room.b = room.arena.allocate<bf16>(most.b);
    room.c = room.arena.allocate<std::byte>(most.c_bytes);
    if (!committed) room.arena.commit();
  }
  const auto fill = [](std::span<bf16> values, uint64_t key) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = to_bf16(philox_uniform(philox(key, 0, i)[0]) - 0.5f);
    }
  };
  fill(room.a, 1);
  fill(room.b, 2);
  cpu::ThreadCountGuard guard(threads);
  for (const StepGemm& gemm : gemms) {
    const GemmShape& shape = gemm.shape;
    const cpu::MatmulShape matmul{.m = shape.m,
                                  .n = shape.n,
                                  .k = shape.k,
                                  .transpose_a = shape.transpose_a,
                                  .transpose_b = shape.transpose_b,
                                  .lda = shape.transpose_a ? shape.m : shape.k,
                                  .ldb = shape.transpose_b ? shape.k : shape.n,
                                  .ldc = shape.n,
                                  .fp32_output = gemm.fp32_output};
    room.products.push_back(std::make_unique<cpu::Matmul>(room.engine, matmul));
    room.scratch.at_least(room.products.back()->scratch_bytes());
  }
}

PlainGemms::~PlainGemms() = default;

std::vector<Duration> PlainGemms::durations(int repeats) {
  Room& room = *room_;
  cpu::ThreadCountGuard guard(room.threads);
  std::vector<Duration> durations;
  for (const std::unique_ptr<cpu::Matmul>& product : room.products) {
    Stopwatch watch;
    for (int i = 0; i < repeats; ++i) {
      product->run(room.stream, nullptr, room.a.data(), room.b.data(), room.c.data(),
                   room.scratch.at_least(0));
      room.stream.wait();
    }
    const Duration all = watch.read();
    durations.push_back({all.seconds / repeats, all.cpu_seconds / repeats});
  }
  return durations;
}

int64_t PlainGemms::bytes() const { return room_->arena.bytes() + room_->scratch.bytes(); }

std::vector<Duration> durations_on(Backend& backend, const std::vector<StepGemm>& gemms,
                                   const BenchRounds& rounds) {
  Memory& memory = backend.memory();
  const Sizes most(gemms);
  Buffer<bf16> a(memory), b(memory);
  Buffer<std::byte> c(memory);
  fill_random(memory, a.at_least(most.a), 1);
  fill_random(memory, b.at_least(most.b), 2);
  c.at_least(most.c_bytes);
  BenchClock clock(memory);
  std::vector<BenchWork> works;
  works.reserve(gemms.size());
  for (const StepGemm& gemm : gemms) {
    works.push_back({.work = [&, gemm] {
      if (gemm.fp32_output) {
        backend.gemm(gemm.shape, 1.0f, a.data(), b.data(), reinterpret_cast<float*>(c.data()),
                     false);
      } else {
        backend.gemm(gemm.shape, 1.0f, a.data(), b.data(), reinterpret_cast<bf16*>(c.data()));
      }
    }});
  }
  std::vector<Duration> durations;
  for (const BenchTime& time : clock.medians(works, rounds)) {
    if (!time.ok()) throw Error(time.error);
    durations.push_back({time.seconds, time.seconds});
  }
  return durations;
}

}  // namespace gnomon
