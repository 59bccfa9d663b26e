#include "trainer/engine/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/errors.h"
#include "base/philox.h"
#include "base/stopwatch.h"
#include "base/version.h"
#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/tensor.h"
#include "trainer/engine/resident_memory.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr const char* kFlopFormula =
    "per token: 6 x weights of the GEMM sites + 6 x layers x tokens x width (causal attention)";

// A product of the model's step and how often a step runs it.
struct StepGemm {
  cpu::MatmulShape shape;
  int64_t count;
  double flops() const {
    return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
           static_cast<double>(shape.k);
  }
};

// fprop, dgrad and wgrad of a weight [out, in], BF16 outputs and FP32 gradients.
void add_gemms(int64_t n, int64_t in, int64_t out, int64_t count, std::vector<StepGemm>& gemms) {
  gemms.push_back(
      {{.m = n, .n = out, .k = in, .transpose_b = true, .lda = in, .ldb = in, .ldc = out}, count});
  gemms.push_back({{.m = n, .n = in, .k = out, .lda = out, .ldb = in, .ldc = in}, count});
  gemms.push_back({{.m = out,
                    .n = in,
                    .k = n,
                    .transpose_a = true,
                    .lda = out,
                    .ldb = in,
                    .ldc = in,
                    .fp32_output = true},
                   count});
}

std::vector<StepGemm> gemms_of_step(const EngineConfig& config) {
  const ModelConfig& model = config.model;
  int64_t n = int64_t{1} * config.batch.sequences * config.batch.tokens;
  int64_t width = model.width;
  int64_t qkv = model.attention_width() + 2 * model.kv_width();
  std::vector<StepGemm> gemms;
  add_gemms(n, width, model.vocabulary, 1, gemms);
  add_gemms(n, width, qkv, model.layers, gemms);
  add_gemms(n, model.attention_width(), width, model.layers, gemms);
  add_gemms(n, width, int64_t{2} * model.ffn, model.layers, gemms);
  add_gemms(n, model.ffn, width, model.layers, gemms);
  return gemms;
}

// The step's products on memory of their own: oneDNN's as they are, without the scale and the
// pieces that the backend adds.
class PlainGemms {
 public:
  PlainGemms(const EngineConfig& config, int threads)
      : threads_(threads),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        gemms_(gemms_of_step(config)) {
    int64_t most_a = 0, most_b = 0, most_c = 0;
    for (const StepGemm& gemm : gemms_) {
      most_a = std::max(most_a, gemm.shape.m * gemm.shape.k);
      most_b = std::max(most_b, gemm.shape.k * gemm.shape.n);
      most_c = std::max(most_c, gemm.shape.m * gemm.shape.n);
    }
    for (bool committed : {false, true}) {
      a_ = arena_.take<bf16>(most_a);
      b_ = arena_.take<bf16>(most_b);
      c_ = arena_.take<float>(most_c);
      if (!committed) arena_.commit();
    }
    fill(a_, 1);
    fill(b_, 2);
    cpu::ThreadCountGuard guard(threads_);
    for (const StepGemm& gemm : gemms_) {
      products_.push_back(std::make_unique<cpu::Matmul>(engine_, gemm.shape));
      scratch_.at_least(products_.back()->scratch_bytes());
    }
  }

  const std::vector<StepGemm>& gemms() const { return gemms_; }
  size_t largest() const {
    auto by_flops = [](const StepGemm& x, const StepGemm& y) { return x.flops() < y.flops(); };
    return static_cast<size_t>(std::ranges::max_element(gemms_, by_flops) - gemms_.begin());
  }
  // For one of each, from `repeats` of them.
  std::vector<Duration> durations(int repeats) {
    cpu::ThreadCountGuard guard(threads_);
    std::vector<Duration> durations;
    for (const std::unique_ptr<cpu::Matmul>& product : products_) {
      Stopwatch watch;
      for (int i = 0; i < repeats; ++i) {
        product->run(stream_, nullptr, a_.data(), b_.data(), c_.data(), scratch_.at_least(0));
        stream_.wait();
      }
      const Duration all = watch.read();
      durations.push_back({all.seconds / repeats, all.cpu_seconds / repeats});
    }
    return durations;
  }
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
  std::vector<StepGemm> gemms_;
  std::vector<std::unique_ptr<cpu::Matmul>> products_;
  cpu::GrowingScratch scratch_;
  Arena arena_{"gemm"};
  std::span<bf16> a_, b_;
  std::span<float> c_;
};

struct Timings {
  Durations bf16_step, fp8_step;
  Durations largest_gemm;  // one
  Durations step_gemms;    // all that a step runs
};

Timings measure(Engine& engine, PlainGemms& plain, const PrecisionPlan& fp8, int rounds) {
  constexpr int kGemmsPerRound = 5;
  Timings timings;
  auto step = [&](const PrecisionPlan& plan, Durations& durations) {
    engine.set_plan(plan);
    Stopwatch watch;
    const double seconds = engine.train_step().seconds;
    durations.add({seconds, watch.read().cpu_seconds});
  };
  for (int round = 0; round <= rounds; ++round) {
    const std::vector<Duration> gemms = plain.durations(kGemmsPerRound);
    step(PrecisionPlan::bf16(), timings.bf16_step);
    step(fp8, timings.fp8_step);
    if (round == 0) {  // warm-up: pages come in
      timings = {};
      continue;
    }
    Duration all{};
    for (size_t i = 0; i < gemms.size(); ++i) {
      const auto count = static_cast<double>(plain.gemms()[i].count);
      all.seconds += gemms[i].seconds * count;
      all.cpu_seconds += gemms[i].cpu_seconds * count;
    }
    timings.largest_gemm.add(gemms[plain.largest()]);
    timings.step_gemms.add(all);
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
  int64_t attention_width = model.attention_width();
  int64_t layer =
      int64_t{model.width} * (2 * attention_width + 2 * model.kv_width() + 3 * int64_t{model.ffn});
  int64_t weights = layer * model.layers + int64_t{model.vocabulary} * model.width;
  double attention =
      6.0 * model.layers * config.batch.tokens * static_cast<double>(attention_width);
  return static_cast<double>(config.batch.tokens_per_step()) *
         (6.0 * static_cast<double>(weights) + attention);
}

std::string bench_step_json(const BenchStepOptions& options) {
  if (options.rounds < 1) {
    throw ConfigError("bench step", 0, "rounds", std::to_string(options.rounds), "1 or more");
  }
  const Recipe recipe = recipe_from_name(options.recipe);
  if (recipe == Recipe::kNone) {
    throw ConfigError("bench step", 0, "recipe", options.recipe, "a recipe with scales");
  }
  EngineConfig config = bench_step_config(options.size);
  config.threads = options.threads;
  SyntheticData data(options.scratch, config.model.vocabulary,
                     int64_t{8} * config.batch.tokens_per_step());
  config.data = data.directory();
  PlainGemms plain(config, options.threads);
  Engine engine(config);
  engine.initialize();
  engine.prepare();
  const int64_t planned = resident_bytes();
  Timings timings = measure(engine, plain, PrecisionPlan::fp8(recipe), options.rounds);

  const StepGemm& largest = plain.gemms()[plain.largest()];
  double gemm_rate = largest.flops() / median(timings.largest_gemm.seconds);
  double gemm_flops = 0;
  for (const StepGemm& gemm : plain.gemms()) {
    gemm_flops += gemm.flops() * static_cast<double>(gemm.count);
  }
  double step_gemm_rate = gemm_flops / median(timings.step_gemms.seconds);
  double step_gemm_cpu_rate = gemm_flops / median(timings.step_gemms.cpu_seconds);
  double tokens = static_cast<double>(config.batch.tokens_per_step());
  auto summary = [&](const Durations& steps) {
    double seconds = median(steps.seconds);
    double cpu_seconds = median(steps.cpu_seconds);
    double rate = step_flops(config) / seconds;
    return json::object{
        {"tokens_per_second", tokens / seconds},
        {"step_seconds", seconds},
        {"step_cpu_seconds", cpu_seconds},
        {"gemm_share", rate / gemm_rate},
        {"step_gemm_share", rate / step_gemm_rate},
        {"step_gemm_share_by_cpu", step_flops(config) / cpu_seconds / step_gemm_cpu_rate}};
  };
  json::object arenas{{"gemm", plain.bytes()}};
  int64_t program = planned - plain.bytes();
  for (const ArenaSize& arena : engine.arenas()) {
    arenas[arena.name] = arena.bytes;
    program -= arena.bytes;
  }
  arenas["program and libraries"] = program;
  Fingerprint fingerprint = engine.fingerprint();
  json::object result{
      {"bench", "step"},
      {"size", options.size},
      {"recipe", options.recipe},
      {"parameters", config.model.parameters()},
      {"tokens_per_step", config.batch.tokens_per_step()},
      {"bf16", summary(timings.bf16_step)},
      {"fp8", summary(timings.fp8_step)},
      {"fp8_over_bf16", median(timings.bf16_step.seconds) / median(timings.fp8_step.seconds)},
      {"fp8_over_bf16_by_cpu",
       median(timings.bf16_step.cpu_seconds) / median(timings.fp8_step.cpu_seconds)},
      {"gemm", json::object{{"m", largest.shape.m},
                            {"n", largest.shape.n},
                            {"k", largest.shape.k},
                            {"flops_per_second", gemm_rate}}},
      {"step_gemms", json::object{{"flops", gemm_flops},
                                  {"flops_per_second", step_gemm_rate},
                                  {"flops_per_cpu_second", step_gemm_cpu_rate}}},
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
