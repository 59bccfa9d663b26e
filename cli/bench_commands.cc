#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "trainer/engine/bench_step.h"

namespace gnomon::cli {
namespace {

struct BenchOptions {
  BenchStepOptions step;
  bool json = false;
};

void print_in_words(const boost::json::object& result) {
  for (const char* precision : {"bf16", "fp8"}) {
    const boost::json::value& side = result.at(precision);
    fmt::print("{:>4}: {:.0f} tokens/s, {:.1f}% of the BF16 GEMM rate\n", precision,
               side.at("tokens_per_second").to_number<double>(),
               100 * side.at("gemm_share").to_number<double>());
  }
  fmt::print("FP8 runs at {:.2f} of BF16's tokens/s\n",
             result.at("fp8_over_bf16").to_number<double>());
}

void bench_step(const BenchOptions& options) {
  boost::json::value result = boost::json::parse(bench_step_json(options.step));
  if (options.json) {
    fmt::print("{}", pretty_json(result));
  } else {
    print_in_words(result.as_object());
  }
}

}  // namespace

void add_bench_commands(CLI::App& app, Context&) {
  CLI::App* bench =
      app.add_subcommand("bench", "Benchmarks; each prints its machine and its build");
  bench->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* step = bench->add_subcommand(
      "step", "A training step in BF16 and FP8, as a share of the backend's own BF16 GEMM rate");
  step->add_option("--size", options->step.size, "demo, 10m or 100m")->capture_default_str();
  step->add_option(
          "--recipe", options->step.recipe,
          "Scaling of the FP8 steps: current, delayed, rowwise, rowwise_gw_hp, block or mx")
      ->capture_default_str();
  step->add_option("--threads", options->step.threads, "Threads of the backend")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  step->add_option("--rounds", options->step.rounds, "Steps of each kind; medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  step->add_flag("--json", options->json, "Print JSON");
  step->footer("Example:\n  gnomon bench step --size 10m --json");
  step->callback([options] { bench_step(*options); });
  add_bench_cast_command(*bench);
  add_bench_statistics_command(*bench);
  add_bench_detector_command(*bench);
  add_bench_detect_command(*bench);
}

}  // namespace gnomon::cli
