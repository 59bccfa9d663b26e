#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <thread>

#include "base/errors.h"
#include "base/host.h"
#include "base/version.h"
#include "cli/json_output.h"
#include "lab/commands/bench_controller_rates.h"
#include "lab/commands/bench_controller_scale.h"
#include "lab/commands/commands.h"
#include "lab/load/daemon.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

struct ControllerBenchOptions {
  std::string gnomond;
  std::string folder = ".";
  double seconds = 5;
  int rounds = 3;
  bool peers = true;
  bool json = false;
  bool quick = false;
  std::vector<std::string> parts = {"rates", "many", "waiters", "restart"};

  bool wants(const std::string& part) const {
    return std::ranges::find(parts, part) != parts.end();
  }
};

void run(ControllerBenchOptions& options) {
  if (options.gnomond.empty()) options.gnomond = bench::beside_this_program("gnomond");
  if (options.gnomond.empty()) {
    throw ConfigError("command line", 0, "--gnomond", "",
                      "gnomond's path: it is not beside gnomon");
  }
  json::object result;
  std::vector<std::string> failed;
  if (options.wants("rates"))
    result = measure_rates({.gnomond = options.gnomond,
                            .folder = options.folder,
                            .seconds = options.seconds,
                            .rounds = options.rounds,
                            .peers = options.peers,
                            .quick = options.quick});
  const ScaleOptions scale{options.gnomond, options.folder, options.quick};
  const auto add = [&](const char* part, json::object (*measure)(const ScaleOptions&)) {
    if (!options.wants(part)) return;
    print_progress(part);
    try {
      for (auto& [key, value] : measure(scale)) result[key] = std::move(value);
    } catch (const Error& error) {  // what was measured before it is still printed
      fmt::print(stderr, "gnomon: the part {} failed: {}\n", part, error.what());
      failed.emplace_back(part);
    }
  };
  add("many", measure_many_runs);
  add("waiters", measure_waiting);
  add("restart", measure_large_restart);
  result["machine"] =
      json::object{{"processor", processor_name()},
                   {"cores", static_cast<int64_t>(std::thread::hardware_concurrency())}};
  result["build"] =
      fmt::format("gnomon {} ({}, {}, {})", kVersion, kRevision, kCompiler, kBuildType);
  if (options.json) {
    fmt::print("{}", pretty_json(result));
  } else {
    if (options.wants("rates")) print_rates(result);
    print_scale(result);
  }
  if (!failed.empty()) throw Error(fmt::format("failed: {}", fmt::join(failed, ", ")));
}

}  // namespace

void add_bench_controller_command(Command& bench) {
  auto options = std::make_shared<ControllerBenchOptions>();
  Command* command = bench.add_subcommand(
      "controller",
      "What gnomond takes in a second and how soon it answers, beside etcd and pushgateway");
  command
      ->add_option("--folder", options->folder, "Where ledgers are made: the disk that is measured")
      ->check(existing_directory())
      ->capture_default_str();
  command
      ->add_option(
          "--seconds", options->seconds,
          "Seconds of each load; beside etcd and pushgateway in slices of a second, in turn")
      ->check(in_range(1.0, 3600.0))
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "Medians are reported")
      ->check(in_range(1, 100))
      ->capture_default_str();
  command->add_option("--gnomond", options->gnomond, "The daemon; by default the one beside gnomon")
      ->check(existing_file());
  command->add_flag("!--no-peers", options->peers, "Leave out etcd and pushgateway");
  command
      ->add_option("--part", options->parts,
                   "rates: reports and directives a second; many: a day of 1,000 runs and 10,000 "
                   "verifiers;\nwaiters: 10,000 clients that wait; restart: a ledger of 5 GB")
      ->check(one_of({"rates", "many", "waiters", "restart"}))
      ->capture_default_str();
  command->add_flag("--quick", options->quick,
                    "Small sizes and one round: whether it works, not what it takes");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Example:\n  gnomon bench controller --json --folder /var/lib/gnomon\n  gnomon bench "
      "controller "
      "--part waiters --quick\n\n"
      "The daemon, its peers and what loads them share this machine. etcd and pushgateway are "
      "loaded "
      "by h2load;\nMany runs and waiters need a limit of some 10,500 open files (ulimit -Hn). "
      "Debian has them as etcd-server, prometheus-pushgateway, nghttp2-client. What is "
      "not installed is left out.");
  command->callback([options] { run(*options); });
}

}  // namespace gnomon::cli
