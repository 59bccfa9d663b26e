#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>

#include "base/temporary_directory.h"
#include "bench/controller/reports.h"
#include "cli/commands.h"
#include "cli/json_output.h"

namespace gnomon::cli {
namespace {

struct Options {
  std::string folder = ".";
  double seconds = 5;
  std::vector<std::string> arguments;
  bool json = false;
};

void run(const Options& options) {
  const std::string gnomond = bench::beside_this_program("gnomond");
  for (const int steps : {1, 100}) {
    const TemporaryDirectory folder(options.folder);
    bench::BenchDaemon daemon(gnomond, folder.path(), "mode = \"observe\"\n", options.arguments);
    const int connections = steps == 1 ? 64 : 8;
    const bench::ReportRate rate = bench::measure_reports(
        daemon, {.connections = connections, .steps = steps, .seconds = options.seconds});
    fmt::print(
        "{} steps a report, {} connections: {:.0f} reports/s, {:.0f} steps/s, p50 {:.2f} ms, p99 "
        "{:.2f} ms, cpu {:.1f} us a step\n",
        steps, connections, rate.load.per_second(), rate.steps_per_second,
        1e3 * rate.load.latencies.quantile(0.5), 1e3 * rate.load.latencies.quantile(0.99),
        1e6 * rate.daemon_cpu_seconds / (options.seconds + 1) / rate.steps_per_second);
  }
}

}  // namespace

void add_bench_controller_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("controller", "What the daemon takes and how fast it answers");
  command->add_option("--folder", options->folder, "Where ledgers are made: the disk to measure")
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "Of each load")->capture_default_str();
  command->add_option("--gnomond", options->arguments, "x");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { run(*options); });
}

}  // namespace gnomon::cli
