#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>

#include "cli/json_output.h"
#include "lab/bench/statistics.h"
#include "lab/commands/commands.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::cli {
namespace {

struct StatisticsBenchOptions {
  BenchStatisticsOptions bench;
  bool json = false;
};

void print_statistics_bench(const boost::json::object& result) {
  auto number = [](const boost::json::value& value) { return value.to_number<double>(); };
  for (const char* kind : {"off", "idle", "look"}) {
    fmt::print("{:>4}: {:.6g} s of CPU time a step\n", kind,
               number(result.at(kind).at("step_cpu_seconds")));
  }
  fmt::print("a look at {} roundings and tensors costs {:.3g} steps, {:.3g}% at every {} steps\n",
             result.at("rows").to_number<int64_t>(), number(result.at("look_steps")),
             100 * number(result.at("share")), result.at("every").to_number<int64_t>());
}

void run(const StatisticsBenchOptions& options) {
  for (const std::string& recipe : options.bench.what_if) {
    what_if_precision(recipe, "", "--what-if");
  }
  const boost::json::value result = boost::json::parse(bench_statistics_json(options.bench));
  if (options.json) {
    fmt::print("{}", pretty_json(result));
  } else {
    print_statistics_bench(result.as_object());
  }
}

}  // namespace

void add_bench_statistics_command(Command& bench) {
  auto options = std::make_shared<StatisticsBenchOptions>();
  Command* command = bench.add_subcommand(
      "statistics", "What tensor statistics cost: steps without, and with a look at every tensor");
  command->add_option("--size", options->bench.size, "demo, 10m or 100m")->capture_default_str();
  command->add_option("--recipe", options->bench.recipe, "Scaling of the FP8 steps")
      ->capture_default_str();
  command->add_option("--what-if", options->bench.what_if, "Recipes to ask about besides")
      ->take_all()
      ->capture_default_str();
  command->add_option("--every", options->bench.every, "Steps from look to look, for the share")
      ->check(in_range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--threads", options->bench.threads, "Threads of the backend")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  command->add_option("--rounds", options->bench.rounds, "Steps of each kind; medians are reported")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Example:\n  gnomon bench statistics --size 10m --json");
  command->callback([options] { run(*options); });
}

}  // namespace gnomon::cli
