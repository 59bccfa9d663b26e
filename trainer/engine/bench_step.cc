#include "trainer/engine/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>

#include "base/errors.h"
#include "base/philox.h"
#include "base/version.h"
#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/tensor.h"
#include "trainer/engine/resident_memory.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kFlopFormula =
    "per token: 6 x weights of the GEMM sites + 6 x layers x tokens x width (causal attention)";

double median(std::vector<double> values) {
  GNOMON_ASSERT(!values.empty());
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The forward GEMM with the most operations, on memory of its own: oneDNN's product as it is,
// without the scale and the pieces that the backend adds.
class LargestGemm {
 public:
  LargestGemm(const EngineConfig& config, int threads)
      : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    shape_.m = int64_t{1} * config.batch.sequences * config.batch.tokens;
    shape_.n = std::max(config.model.ffn, config.model.vocabulary);
    shape_.k = config.model.width;
    shape_.transpose_b = true;
    for (bool committed : {false, true}) {
      a_ = arena_.take<bf16>(shape_.m * shape_.k);
      b_ = arena_.take<bf16>(shape_.n * shape_.k);
      c_ = arena_.take<bf16>(shape_.m * shape_.n);
      if (!committed) arena_.commit();
    }
    fill(a_, 1);
    fill(b_, 2);
    cpu::ThreadCountGuard guard(threads_);
    product_ = std::make_unique<cpu::Matmul>(engine_, cpu::MatmulShape{.m = shape_.m,
                                                                       .n = shape_.n,
                                                                       .k = shape_.k,
                                                                       .transpose_a = false,
                                                                       .transpose_b = true,
                                                                       .lda = shape_.k,
                                                                       .ldb = shape_.k,
                                                                       .ldc = shape_.n});
    scratch_.at_least(product_->scratch_bytes());
  }

  double flops() const {
    return 2.0 * static_cast<double>(shape_.m) * static_cast<double>(shape_.n) *
           static_cast<double>(shape_.k);
  }
  // Seconds for one, from `repeats` of them.
  double seconds(int repeats) {
    cpu::ThreadCountGuard guard(threads_);
    Clock::time_point start = Clock::now();
    for (int i = 0; i < repeats; ++i) {
      product_->run(stream_, 1.0f, a_.data(), b_.data(), c_.data(), scratch_.at_least(0));
      stream_.wait();
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / repeats;
  }
  const GemmShape& shape() const { return shape_; }
  int64_t bytes() const { return arena_.bytes() + scratch_.bytes(); }

 private:
  static void fill(std::span<bf16> values, uint64_t key) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = to_bf16(philox_uniform(philox(key, 0, i)[0]) - 0.5f);
    }
  }

  int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  GemmShape shape_;
  std::unique_ptr<cpu::Matmul> product_;
  cpu::GrowingScratch scratch_;
  Arena arena_{"gemm"};
  std::span<bf16> a_, b_, c_;
};

struct Timings {
  std::vector<double> bf16_step, fp8_step, gemm;
};

Timings measure(Engine& engine, LargestGemm& gemm, int rounds) {
  constexpr int kGemmsPerRound = 20;
  Timings timings;
  auto step = [&](const PrecisionPlan& plan) {
    engine.set_plan(plan);
    return engine.train_step().seconds;
  };
  for (int round = 0; round <= rounds; ++round) {
    double gemm_seconds = gemm.seconds(kGemmsPerRound);
    double bf16_seconds = step(PrecisionPlan::bf16());
    double fp8_seconds = step(PrecisionPlan::fp8(Recipe::kCurrent));
    if (round == 0) continue;  // warm-up: kernels are compiled, pages come in
    timings.gemm.push_back(gemm_seconds);
    timings.bf16_step.push_back(bf16_seconds);
    timings.fp8_step.push_back(fp8_seconds);
  }
  return timings;
}

}  // namespace

const std::vector<std::string>& bench_step_sizes() {
  static const std::vector<std::string> sizes = {"demo", "10m", "100m"};
  return sizes;
}

EngineConfig bench_step_config(const std::string& size) {
  EngineConfig config;
  config.heldout_sequences = 1;
  ModelConfig& model = config.model;
  if (size == "demo") {
    model = {.layers = 4, .width = 128, .heads = 4, .kv_heads = 2, .ffn = 352, .vocabulary = 1024};
    config.batch = {.sequences = 8, .tokens = 128, .accumulation = 1};
  } else if (size == "10m") {
    model = {.layers = 8, .width = 320, .heads = 5, .kv_heads = 5, .ffn = 864, .vocabulary = 2048};
    config.batch = {.sequences = 8, .tokens = 256, .accumulation = 1};
  } else if (size == "100m") {
    model = {
        .layers = 12, .width = 768, .heads = 12, .kv_heads = 12, .ffn = 2048, .vocabulary = 16384};
    config.batch = {.sequences = 4, .tokens = 512, .accumulation = 1};
  } else {
    throw ConfigError("bench step", 0, "size", size,
                      fmt::format("{}", fmt::join(bench_step_sizes(), ", ")));
  }
  return config;
}

double step_flops(const EngineConfig& config) {
  const ModelConfig& model = config.model;
  int64_t kv_width = int64_t{1} * model.kv_heads * model.head_dim();
  int64_t layer = int64_t{model.width} * (2 * model.width + 2 * kv_width + 3 * int64_t{model.ffn});
  int64_t weights = layer * model.layers + int64_t{model.vocabulary} * model.width;
  double attention = 6.0 * model.layers * config.batch.tokens * model.width;
  return static_cast<double>(config.batch.tokens_per_step()) *
         (6.0 * static_cast<double>(weights) + attention);
}

std::string bench_step_json(const BenchStepOptions& options) {
  if (options.rounds < 1) {
    throw ConfigError("bench step", 0, "rounds", std::to_string(options.rounds), "1 or more");
  }
  EngineConfig config = bench_step_config(options.size);
  config.threads = options.threads;
  SyntheticData data(options.scratch, config.model.vocabulary,
                     int64_t{8} * config.batch.tokens_per_step());
  config.data = data.directory();
  LargestGemm gemm(config, options.threads);
  Engine engine(config);
  engine.initialize();
  engine.prepare();
  const int64_t planned = resident_bytes();
  Timings timings = measure(engine, gemm, options.rounds);

  double gemm_rate = gemm.flops() / median(timings.gemm);
  double tokens = static_cast<double>(config.batch.tokens_per_step());
  auto summary = [&](const std::vector<double>& steps) {
    double seconds = median(steps);
    return json::object{{"tokens_per_second", tokens / seconds},
                        {"step_seconds", seconds},
                        {"gemm_share", step_flops(config) / seconds / gemm_rate}};
  };
  json::object arenas{{"gemm", gemm.bytes()}};
  int64_t program = planned - gemm.bytes();
  for (const ArenaSize& arena : engine.arenas()) {
    arenas[arena.name] = arena.bytes;
    program -= arena.bytes;
  }
  arenas["program and libraries"] = program;
  Fingerprint fingerprint = engine.fingerprint();
  json::object result{{"bench", "step"},
                      {"size", options.size},
                      {"parameters", config.model.parameters()},
                      {"tokens_per_step", config.batch.tokens_per_step()},
                      {"bf16", summary(timings.bf16_step)},
                      {"fp8", summary(timings.fp8_step)},
                      {"fp8_over_bf16", median(timings.bf16_step) / median(timings.fp8_step)},
                      {"gemm", json::object{{"m", gemm.shape().m},
                                            {"n", gemm.shape().n},
                                            {"k", gemm.shape().k},
                                            {"flops_per_second", gemm_rate}}},
                      {"flop_formula", kFlopFormula},
                      {"step_flops", step_flops(config)},
                      {"rounds", options.rounds},
                      {"memory_planned_bytes", planned},
                      {"memory_peak_bytes", resident_bytes_peak()},
                      {"arenas", std::move(arenas)},
                      {"machine", fingerprint.device},
                      {"libraries", fingerprint.libraries},
                      {"build", fingerprint.build},
                      {"build_type", kBuildType},
                      {"threads", options.threads}};
  return json::serialize(result);
}

}  // namespace gnomon
