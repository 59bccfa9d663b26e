#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <memory>

#include "cli/json_output.h"
#include "lab/bench/step.h"
#include "lab/commands/bench_options.h"
#include "lab/commands/commands.h"
#include "numerics/recipes.h"

namespace gnomon::cli {
namespace {

struct BenchOptions {
  BenchStepOptions step;
  DeviceChoice device;
  bool json = false;
};

void print_in_words(const boost::json::object& result) {
  for (const char* precision : {"bf16", "fp8"}) {
    const boost::json::value& side = result.at(precision);
    fmt::print("{:>4}: {:.0f} tokens/s, {:.1f}% of the BF16 GEMM rate\n", precision,
               side.at("tokens_per_second").to_number<double>(),
               100 * side.at("gemm_share").to_number<double>());
    if (const auto* of_peak = side.as_object().if_contains("model_flops_utilisation")) {
      fmt::print("      {:.1f}% of the nominal BF16 peak\n", 100 * of_peak->to_number<double>());
    }
  }
  fmt::print("FP8 runs at {:.2f} of BF16's tokens/s\n",
             result.at("fp8_over_bf16").to_number<double>());
}

void bench_step(BenchOptions& options) {
  options.step.device = options.device.chosen();
  boost::json::value result = boost::json::parse(bench_step_json(options.step));
  if (options.json) {
    fmt::print("{}", pretty_json(result));
  } else {
    print_in_words(result.as_object());
  }
}

void add_batch_options(Command& step, BenchStepOptions& options) {
  const auto count = [&](const char* name, int& value, const char* what) {
    step.add_option(name, value, what)->check(in_range(1, 1 << 20))->capture_default_str();
  };
  step.add_option("--model", options.model,
                  "Instead of a size, a model that people know: gpt2-124m, gpt2-1558m, "
                  "qwen2.5-0.5b, -1.5b, -3b, -7b, llama-1b, -3b, -8b, -70b");
  count("--sequence", options.sequence, "Tokens of a sequence, with --model");
  count("--sequences", options.sequences, "Sequences of a micro-batch, with --model");
  count("--accumulation", options.accumulation, "Micro-batches of a step, with --model");
  step.add_option_function<std::string>(
          "--recompute",
          [&options](const std::string& name) {
            options.memory.recompute = recompute_from_name(name, "");
          },
          "What is computed again in the backward pass (default: none)")
      ->type_name("none|swiglu|block");
  step.add_option_function<std::string>(
          "--moments",
          [&options](const std::string& name) { options.moments = moment_format_from_name(name); },
          "How AdamW's moments are stored (default: fp32)")
      ->type_name("fp32|bf16|fp8");
}

void add_step_options(Command& step, BenchStepOptions& options, DeviceChoice& device) {
  step.add_option("--size", options.size, "demo, 10m or 100m")->capture_default_str();
  add_batch_options(step, options);
  step.add_option("--recipe", options.recipe,
                  fmt::format("Scaling of the FP8 steps: {}", fmt::join(run_recipe_names(), ", ")))
      ->capture_default_str();
  add_accumulate_option(step, options.accumulate);
  step.add_option("--keep-bf16", options.keep_bf16,
                  "Globs of sites that the FP8 steps leave in BF16, like lm_head");
  add_bench_device_options(step, device, options.threads);
  step.add_option("--rounds", options.rounds, "Rounds of steps of each kind; medians are reported")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  step.add_option(
          "--steps", options.steps,
          "Steps of each kind in a round; with more than one, another goes before them, which "
          "tells what a change of the plan costs")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  step.add_option("--peak-bf16", options.peak_bf16,
                  "FLOP/s of the device's data sheet (known of A100, H100, H200)")
      ->check(positive_number());
  step.add_option("--peak-fp8", options.peak_fp8, "The same for FP8")->check(positive_number());
}

}  // namespace

void add_bench_commands(Command& app, Context&) {
  Command* bench = app.add_subcommand("bench", "Benchmarks; each prints its machine and its build");
  bench->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  Command* step = bench->add_subcommand(
      "step", "A training step in BF16 and FP8, as a share of the backend's own BF16 GEMM rate");
  add_step_options(*step, options->step, options->device);
  step->add_flag("--json", options->json, "Print JSON");
  step->footer(
      "Examples:\n  gnomon bench step --size 10m --json\n"
      "  gnomon bench step --device cuda --model qwen2.5-1.5b --sequences 16 --steps 5 --json");
  step->callback([options] { bench_step(*options); });
  add_bench_device_commands(*bench);
  add_bench_statistics_command(*bench);
  add_bench_controller_command(*bench);
  add_bench_detector_command(*bench);
  add_bench_detect_command(*bench);
}

}  // namespace gnomon::cli
