#include "lab/bench/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/errors.h"
#include "base/stopwatch.h"
#include "base/version.h"
#include "lab/bench/models.h"
#include "lab/bench/step_gemms.h"
#include "trainer/engine/architecture.h"
#include "trainer/engine/memory_need.h"
#include "trainer/engine/resident_memory.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr const char* kFlopFormula =
    "per token: 6 x weights of the GEMM sites + 6 x layers x tokens x width (causal attention)";

struct Timings {
  Durations bf16_step, fp8_step;
  std::vector<double> bf16_switch, fp8_switch;  // seconds more than a step
  Durations largest_gemm;                       // one
  Durations step_gemms;                         // all that a step runs
};

void add_gemm_times(const std::vector<StepGemm>& gemms, const std::vector<Duration>& durations,
                    Timings& timings) {
  Duration all{};
  for (size_t i = 0; i < gemms.size(); ++i) {
    all.seconds += durations[i].seconds * gemms[i].count;
    all.cpu_seconds += durations[i].cpu_seconds * gemms[i].count;
  }
  timings.largest_gemm.add(durations[largest_gemm(gemms)]);
  timings.step_gemms.add(all);
}

// `plain` is nullptr where the products were timed before.
void measure(Engine& engine, const std::vector<StepGemm>& gemms, PlainGemms* plain,
             const PrecisionPlan& in_bf16, const PrecisionPlan& fp8,
             const BenchStepOptions& options, Timings& timings) {
  constexpr int kGemmsPerRound = 5;
  const auto steps = [&](const PrecisionPlan& plan, bool counts, Durations& durations,
                         std::vector<double>& switches) {
    Stopwatch change;
    engine.set_plan(plan);
    if (options.steps > 1) engine.train_step();
    const double changed = change.read().seconds;
    Stopwatch watch;
    double seconds = 0;
    for (int i = 0; i < options.steps; ++i) seconds += engine.train_step().seconds;
    const Duration all = watch.read();
    if (!counts) return;
    // One step's own figure is the narrower; several are timed with all that is between them.
    const double each = options.steps > 1 ? all.seconds / options.steps : seconds;
    durations.add({each, all.cpu_seconds / options.steps});
    if (options.steps > 1) switches.push_back(changed - each);
  };
  for (int round = 0; round <= options.rounds; ++round) {
    const bool counts = round > 0;  // the first brings pages in
    if (plain != nullptr) {
      const std::vector<Duration> durations = plain->durations(kGemmsPerRound);
      if (counts) add_gemm_times(gemms, durations, timings);
    }
    steps(in_bf16, counts, timings.bf16_step, timings.bf16_switch);
    steps(fp8, counts, timings.fp8_step, timings.fp8_switch);
  }
}

PrecisionPlan with_moments(const PrecisionPlan& plan, MomentFormat moments) {
  const std::string name = moment_format_name(moments);
  return plan.with_run({.first_moment = name, .second_moment = name});
}

PrecisionPlan bf16_plan(const BenchStepOptions& options) {
  return with_moments(PrecisionPlan::bf16(), options.moments);
}

PrecisionPlan fp8_plan(const BenchStepOptions& options) {
  const Recipe recipe = recipe_from_name(options.recipe);
  if (recipe == Recipe::kNone) {
    throw ConfigError("bench step", 0, "recipe", options.recipe, "a recipe with scales");
  }
  const PrecisionPlan plan = with_moments(
      PrecisionPlan::fp8(recipe, accumulate_from_name(options.accumulate)), options.moments);
  return options.keep_bf16.empty() ? plan : plan.with_bf16_sites(options.keep_bf16);
}

// Seconds of a step in which every product runs at the peak of its precision, and attention at that
// of BF16.
double speed_of_light(const EngineConfig& config, const PrecisionPlan& plan,
                      const NominalPeak& peak) {
  const ModelConfig& model = config.model;
  const auto tokens = static_cast<double>(config.batch.tokens_per_step());
  double seconds = 6.0 * model.layers * config.batch.tokens *
                   static_cast<double>(model.attention_width()) * tokens / peak.bf16;
  for (const Site& site : all_sites(model)) {
    const SitePrecision precision = plan.resolve(site.name, model.layers);
    for (Gemm gemm : kGemms) {
      const double rate = precision.uses_fp8(gemm) && peak.fp8 > 0 ? peak.fp8 : peak.bf16;
      seconds += 2 * static_cast<double>(site.in * site.out) * tokens / rate;
    }
  }
  return seconds;
}

}  // namespace

NominalPeak nominal_peak(const std::string& device) {
  const auto is = [&](const char* name) { return device.find(name) != std::string::npos; };
  // The data sheets' dense rates of the SXM parts.
  if (is("H200") || is("H100") || is("GH200")) return {989.4e12, 1978.9e12};
  if (is("A100")) return {312e12, 0};
  return {};
}

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

EngineConfig bench_step_config(const BenchStepOptions& options) {
  EngineConfig config;
  if (options.model.empty()) {
    config = bench_step_config(options.size);
  } else {
    config.heldout_sequences = 1;
    config.model = bench_model(options.model);
    config.batch = {.sequences = options.sequences,
                    .tokens = options.sequence,
                    .accumulation = options.accumulation};
  }
  config.memory = options.memory;
  config.memory.moments = options.moments;
  config.device = options.device;
  config.threads = options.threads;
  return config;
}

namespace {

json::object arenas_of(const Engine& engine, Device device, int64_t gemm_bytes, int64_t& planned) {
  json::object arenas;
  int64_t program = resident_bytes();
  if (gemm_bytes > 0) arenas["gemm"] = gemm_bytes;
  int64_t sum = gemm_bytes;
  for (const ArenaSize& arena : engine.arenas()) {
    arenas[arena.name] = arena.bytes;
    sum += arena.bytes;
  }
  if (device == Device::kCpu) program -= sum;
  arenas["program and libraries"] = program;
  planned = sum + program;
  return arenas;
}

// FLOP/s of the products alone.
struct Rates {
  double largest = 0, step = 0, step_by_cpu = 0;
};

// And in `said` as the result has them.
Rates rates_of(const std::vector<StepGemm>& gemms, const Timings& timings, json::object& said) {
  const StepGemm& largest = gemms[largest_gemm(gemms)];
  double flops = 0;
  for (const StepGemm& gemm : gemms) flops += gemm.flops() * gemm.count;
  const Rates rates{largest.flops() / median(timings.largest_gemm.seconds),
                    flops / median(timings.step_gemms.seconds),
                    flops / median(timings.step_gemms.cpu_seconds)};
  said["gemm"] = json::object{{"m", largest.shape.m},
                              {"n", largest.shape.n},
                              {"k", largest.shape.k},
                              {"flops_per_second", rates.largest}};
  said["step_gemms"] = json::object{{"flops", flops},
                                    {"flops_per_second", rates.step},
                                    {"flops_per_cpu_second", rates.step_by_cpu}};
  return rates;
}

// Rates of one precision's steps.
json::object summary_of(const EngineConfig& config, const BenchStepOptions& options,
                        const PrecisionPlan& plan, const Durations& steps,
                        const std::vector<double>& switches, const Rates& rates) {
  const double seconds = median(steps.seconds), cpu_seconds = median(steps.cpu_seconds);
  const double rate = step_flops(config) / seconds;
  json::object result{
      {"tokens_per_second", static_cast<double>(config.batch.tokens_per_step()) / seconds},
      {"step_seconds", seconds},
      {"step_cpu_seconds", cpu_seconds},
      {"gemm_share", rate / rates.largest},
      {"step_gemm_share", rate / rates.step},
      {"step_gemm_share_by_cpu", step_flops(config) / cpu_seconds / rates.step_by_cpu},
      {"flops_per_second", rate}};
  const NominalPeak peak{options.peak_bf16, options.peak_fp8};
  if (peak.bf16 > 0) {
    result["model_flops_utilisation"] = rate / peak.bf16;
    result["speed_of_light_share"] = speed_of_light(config, plan, peak) / seconds;
  }
  if (!switches.empty()) result["switch_steps"] = median(switches) / seconds;
  return result;
}

void add_choices(const BenchStepOptions& options, const EngineConfig& config,
                 json::object& result) {
  result["device"] = device_name(options.device);
  result["model"] = options.model;
  result["sequence"] = config.batch.tokens;
  result["sequences"] = config.batch.sequences;
  result["accumulation"] = config.batch.accumulation;
  result["recompute"] = recompute_name(options.memory.recompute);
  result["moments"] = moment_format_name(options.moments);
  json::array kept;
  for (const std::string& glob : options.keep_bf16) kept.push_back(json::string(glob));
  result["keep_bf16"] = std::move(kept);
  result["steps_per_round"] = options.steps;
  if (options.peak_bf16 > 0) {
    result["nominal_peak_flops_per_second"] =
        json::object{{"bf16", options.peak_bf16}, {"fp8", options.peak_fp8}};
  }
}

}  // namespace

std::string bench_step_json(const BenchStepOptions& given) {
  BenchStepOptions options = given;
  if (options.rounds < 1) {
    throw ConfigError("bench step", 0, "rounds", std::to_string(options.rounds), "1 or more");
  }
  const PrecisionPlan in_bf16 = bf16_plan(options), fp8 = fp8_plan(options);
  EngineConfig config = bench_step_config(options);
  SyntheticData data(options.scratch, config.model.vocabulary,
                     int64_t{8} * config.batch.tokens_per_step());
  config.data = data.directory();
  const std::vector<StepGemm> gemms = gemms_of_step(config);
  Timings timings;
  std::unique_ptr<PlainGemms> plain;
  if (options.device == Device::kCpu) {
    plain = std::make_unique<PlainGemms>(gemms, options.threads);
  } else {
    // Before the engine takes the device's memory.
    const auto backend = backend_makers(options.device).bf16(options.threads);
    check_memory<bf16>(config, 1, *backend);  // a refusal comes before the work
    add_gemm_times(gemms, durations_on(*backend, gemms, {.rounds = options.rounds}), timings);
  }
  Engine engine(config);
  engine.initialize();
  engine.prepare();
  const Fingerprint fingerprint = engine.fingerprint();
  const NominalPeak peak = nominal_peak(fingerprint.device);
  if (options.peak_bf16 == 0) options.peak_bf16 = peak.bf16;
  if (options.peak_fp8 == 0) options.peak_fp8 = peak.fp8;
  int64_t planned = 0;
  json::object arenas =
      arenas_of(engine, options.device, plain == nullptr ? 0 : plain->bytes(), planned);
  measure(engine, gemms, plain.get(), in_bf16, fp8, options, timings);

  json::object gemm_rates;
  const Rates rates = rates_of(gemms, timings, gemm_rates);
  json::object result{
      {"bench", "step"},
      {"size", options.model.empty() ? options.size : ""},
      {"recipe", options.recipe},
      {"accumulate", options.accumulate},
      {"parameters", config.model.parameters()},
      {"tokens_per_step", config.batch.tokens_per_step()},
      {"bf16", summary_of(config, options, in_bf16, timings.bf16_step, timings.bf16_switch, rates)},
      {"fp8", summary_of(config, options, fp8, timings.fp8_step, timings.fp8_switch, rates)},
      {"fp8_over_bf16", median(timings.bf16_step.seconds) / median(timings.fp8_step.seconds)},
      {"fp8_over_bf16_by_cpu",
       median(timings.bf16_step.cpu_seconds) / median(timings.fp8_step.cpu_seconds)},
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
  result.insert(gemm_rates.begin(), gemm_rates.end());
  add_choices(options, config, result);
  return json::serialize(result);
}

}  // namespace gnomon
