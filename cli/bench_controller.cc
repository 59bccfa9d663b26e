#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <numeric>
#include <thread>

#include "base/errors.h"
#include "base/host.h"
#include "base/progress.h"
#include "base/temporary_directory.h"
#include "base/version.h"
#include "bench/controller/directives.h"
#include "bench/controller/peers.h"
#include "bench/controller/reports.h"
#include "cli/bench_controller_scale.h"
#include "cli/commands.h"
#include "cli/json_output.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

struct Options {
  std::string gnomond;
  std::string folder = ".";
  double seconds = 5;
  int rounds = 3;
  bool peers = true;
  bool json = false;
  bool quick = false;
  std::vector<std::string> parts = {"rates", "many", "flat", "waiters", "restart"};

  bool wants(const std::string& part) const {
    return std::ranges::find(parts, part) != parts.end();
  }
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Of each round's numbers by key.
class Rounds {
 public:
  void add(const std::string& key, double value) { values_[key].push_back(value); }
  void add_missing(const std::string& key, const std::string& why) { missing_[key] = why; }
  json::object medians() const {
    json::object result;
    for (const auto& [key, values] : values_) result[key] = median(values);
    for (const auto& [key, why] : missing_) result[key] = nullptr;
    return result;
  }
  json::object all() const {
    json::object result;
    for (const auto& [key, values] : values_)
      result[key] = json::array(values.begin(), values.end());
    return result;
  }
  json::object missing() const {
    json::object result;
    for (const auto& [key, why] : missing_) result[key] = why;
    return result;
  }

 private:
  std::map<std::string, std::vector<double>> values_;
  std::map<std::string, std::string> missing_;
};

void tell(const char* what) { fmt::print(stderr, "bench controller: {}\n", what); }

void measure_reports(const Options& options, int steps, int connections, Rounds& rounds) {
  const TemporaryDirectory folder(options.folder);
  bench::BenchDaemon daemon(options.gnomond, folder.path(), "mode = \"observe\"\n");
  const bench::ReportRate rate = bench::measure_reports(
      daemon, {.connections = connections, .steps = steps, .seconds = options.seconds});
  const double p99_ms = 1e3 * rate.load.latencies.quantile(0.99);
  if (steps == 1) {
    rounds.add("reports_per_second_64", rate.load.per_second());
    rounds.add("report_p50_ms", 1e3 * rate.load.latencies.quantile(0.5));
    rounds.add("report_p99_ms", p99_ms);
  } else {
    rounds.add("batched_steps_per_second", rate.steps_per_second);
    rounds.add("batch_p99_ms", p99_ms);
  }
  rounds.add(steps == 1 ? "report_cpu_microseconds" : "batched_step_cpu_microseconds",
             1e6 * rate.daemon_cpu_seconds / (options.seconds + 1) / rate.steps_per_second);
}

void measure_tls(const Options& options, Rounds& rounds) {
  if (bench::on_path("openssl").empty()) {
    return rounds.add_missing("tls_reports_per_second_64", "openssl is not installed");
  }
  const TemporaryDirectory folder(options.folder);
  const auto daemon =
      bench::BenchDaemon::with_tls(options.gnomond, folder.path(), "mode = \"observe\"\n");
  const bench::ReportRate rate =
      bench::measure_reports(*daemon, {.connections = 64, .steps = 1, .seconds = options.seconds});
  rounds.add("tls_reports_per_second_64", rate.load.per_second());
  rounds.add("tls_report_p99_ms", 1e3 * rate.load.latencies.quantile(0.99));
  rounds.add("tls_report_cpu_microseconds",
             1e6 * rate.daemon_cpu_seconds / (options.seconds + 1) / rate.steps_per_second);
  const bench::ConnectionRate begun = bench::measure_tls_connections(*daemon, options.seconds / 2);
  rounds.add("tls_connections_per_second", begun.per_second);
  rounds.add("tls_connection_cpu_microseconds",
             1e6 * begun.daemon_cpu_seconds / static_cast<double>(begun.connections));
}

void measure_directives(const Options& options, bool saturated, Rounds& rounds) {
  const TemporaryDirectory folder(options.folder);
  bench::BenchDaemon daemon(options.gnomond, folder.path(), bench::directive_policy());
  const bench::DirectiveTimes times =
      bench::measure_directives(daemon, {.interval = saturated ? 0 : 0.1});
  const std::string prefix = saturated ? "saturated_" : "";
  rounds.add(prefix + "directive_p50_ms", 1e3 * times.directives.quantile(0.5));
  rounds.add(prefix + "directive_p99_ms", 1e3 * times.directives.quantile(0.99));
  rounds.add(prefix + "heartbeat_p99_ms", 1e3 * times.heartbeats.quantile(0.99));
  rounds.add(prefix + "reports_per_second_beside_directives", times.reports_per_second);
}

using MeasurePeer = std::optional<bench::PeerRate> (*)(const std::filesystem::path&,
                                                       const bench::PeerLoad&, std::string&);

void measure_peer(const Options& options, const std::string& rate_key, const std::string& p99_key,
                  MeasurePeer measure, Rounds& rounds, json::object& versions) {
  const TemporaryDirectory folder(options.folder);
  std::string missing;
  const std::optional<bench::PeerRate> rate =
      measure(folder.path(), {.seconds = options.seconds}, missing);
  if (!rate) return rounds.add_missing(rate_key, missing);
  rounds.add(rate_key, rate->per_second);
  rounds.add(p99_key, 1e3 * rate->p99_seconds);
  versions[rate_key] = rate->version;
}

// Everything once, one after another, so that a busy moment of the machine meets all alike.
void measure_round(const Options& options, Rounds& rounds, json::object& versions) {
  tell("reports of single steps, 64 connections");
  measure_reports(options, 1, 64, rounds);
  tell("the same in TLS, and connections that begin");
  measure_tls(options, rounds);
  if (options.peers) {
    tell("puts to etcd, 64 connections");
    measure_peer(options, "etcd_puts_per_second_64", "etcd_put_p99_ms", bench::measure_etcd, rounds,
                 versions);
    tell("posts to pushgateway, 64 connections");
    measure_peer(options, "pushgateway_posts_per_second_64", "pushgateway_post_p99_ms",
                 bench::measure_pushgateway, rounds, versions);
  }
  tell("reports of a hundred steps, 8 connections");
  measure_reports(options, 100, 8, rounds);
  tell("directives of a hundred runs that report ten times a second");
  measure_directives(options, false, rounds);
  tell("the same while reports come as fast as they are answered");
  measure_directives(options, true, rounds);
}

void print_in_words(const json::object& result) {
  const auto number = [&](const char* key) {
    const json::value& value = result.at(key);
    return value.is_null() ? std::string("not installed")
                           : fmt::format("{:.4g}", value.to_number<double>());
  };
  fmt::print("durable reports of one step, 64 connections: {} a second, p99 {} ms\n",
             number("reports_per_second_64"), number("report_p99_ms"));
  if (!result.at("tls_reports_per_second_64").is_null()) {
    fmt::print("  in TLS: {} a second, p99 {} ms; connections one after another: {} a second\n",
               number("tls_reports_per_second_64"), number("tls_report_p99_ms"),
               number("tls_connections_per_second"));
  }
  if (result.contains("etcd_puts_per_second_64")) {
    fmt::print("  etcd puts: {} a second; pushgateway posts: {} a second\n",
               number("etcd_puts_per_second_64"), number("pushgateway_posts_per_second_64"));
  }
  fmt::print("durable steps in batches of 100: {} a second\n", number("batched_steps_per_second"));
  fmt::print(
      "last result of a window to the directive at the trainer: p99 {} ms, {} ms when "
      "reports saturate the machine (heartbeats {} ms)\n",
      number("directive_p99_ms"), number("saturated_directive_p99_ms"),
      number("saturated_heartbeat_p99_ms"));
}

json::object measure_rates(Options& options) {
  if (options.quick) {
    options.seconds = 1;
    options.rounds = 1;
  }
  Rounds rounds;
  json::object versions;
  for (int i = 0; i < options.rounds; ++i) measure_round(options, rounds, versions);
  json::object result = rounds.medians();
  result["rounds"] = rounds.all();
  result["missing"] = rounds.missing();
  result["versions"] = versions;
  return result;
}

void run(Options& options) {
  if (options.gnomond.empty()) options.gnomond = bench::beside_this_program("gnomond");
  if (options.gnomond.empty()) {
    throw ConfigError("command line", 0, "--gnomond", "",
                      "gnomond's path: it is not beside gnomon");
  }
  json::object result;
  std::vector<std::string> failed;
  if (options.wants("rates")) result = measure_rates(options);
  const ScaleOptions scale{options.gnomond, options.folder, options.quick};
  const auto add = [&](const char* part, json::object (*measure)(const ScaleOptions&)) {
    if (!options.wants(part)) return;
    tell(part);
    try {
      for (auto& [key, value] : measure(scale)) result[key] = std::move(value);
    } catch (const Error& error) {  // what was measured before it is still told
      fmt::print(stderr, "gnomon: the part {} failed: {}\n", part, error.what());
      failed.emplace_back(part);
    }
  };
  add("many", measure_many_runs);
  add("flat", measure_flatness);
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
    if (options.wants("rates")) print_in_words(result);
    print_scale(result);
  }
  if (!failed.empty()) throw Error(fmt::format("failed: {}", fmt::join(failed, ", ")));
}

}  // namespace

void add_bench_controller_command(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "controller",
      "What gnomond takes in a second and how soon it answers, beside etcd and pushgateway");
  command
      ->add_option("--folder", options->folder, "Where ledgers are made: the disk that is measured")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "Of each load, after a second to warm up")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "Medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--gnomond", options->gnomond, "The daemon; by default the one beside gnomon")
      ->check(CLI::ExistingFile);
  command->add_flag("!--no-peers", options->peers, "Leave out etcd and pushgateway");
  command
      ->add_option(
          "--part", options->parts,
          "rates: reports and directives a second; many: a day of 1,000 runs and 10,000 "
          "verifiers;\nflat: each call with 100 times the history; waiters: 10,000 clients "
          "that wait; restart: a ledger of 5 GB")
      ->check(CLI::IsMember({"rates", "many", "flat", "waiters", "restart"}))
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
