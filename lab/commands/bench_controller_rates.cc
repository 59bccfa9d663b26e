#include "lab/commands/bench_controller_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "base/stopwatch.h"
#include "base/temporary_directory.h"
#include "lab/load/directives.h"
#include "lab/load/peers.h"
#include "lab/load/reports.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

// Numbers by key, one from each round.
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

double cpu_microseconds(double cpu_seconds, double requests) {
  return requests > 0 ? 1e6 * cpu_seconds / requests : 0;
}

// gnomond, etcd and pushgateway run beside each other and are loaded for a second each, again and
// again: a machine whose speed swings meets all of them alike, and the rates of neighbouring
// slices can be divided. Every other turn goes backwards.
class Turns {
 public:
  explicit Turns(const RateOptions& options)
      : slices_(std::max(2, static_cast<int>(std::lround(options.seconds)))),
        slice_seconds_(options.seconds / slices_),
        folder_(options.folder),
        daemon_(options.gnomond, place("gnomond"), "mode = \"observe\"\n"),
        reporters_(daemon_, 64, 1) {
    if (!options.peers) return;
    add_peer("etcd_puts_per_second_64", "etcd_put_p99_ms", bench::start_etcd);
    add_peer("pushgateway_posts_per_second_64", "pushgateway_post_p99_ms",
             bench::start_pushgateway);
  }

  void measure(Rounds& rounds, json::object& versions) {
    for (const Contender& peer : peers_) {
      if (!peer.peer) {
        rounds.add_missing(peer.rate_key, peer.missing);
      } else {
        versions[peer.rate_key] = peer.peer->version();
      }
    }
    for (int slice = 0; slice < slices_; ++slice) measure_slice(slice % 2 == 1, rounds);
    rounds.add("report_p50_ms", 1e3 * reports_.quantile(0.5));
    rounds.add("report_p99_ms", 1e3 * reports_.quantile(0.99));
    rounds.add("report_cpu_microseconds", cpu_microseconds(cpu_seconds_, reports_and_warm_up_));
    for (const Contender& peer : peers_) {
      if (peer.peer) rounds.add(peer.p99_key, 1e3 * peer.latencies.quantile(0.99));
    }
  }

 private:
  static constexpr double kWarmSeconds = 0.25;

  struct Contender {
    std::string rate_key, p99_key, missing;
    std::unique_ptr<bench::Peer> peer;  // null: not installed
    bench::Latencies latencies;
    double per_second = 0;  // in the newest slice
  };
  using Start = std::unique_ptr<bench::Peer> (*)(const std::filesystem::path&, std::string&);

  std::filesystem::path place(const std::string& name) const {
    std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path);
    return path;
  }

  void add_peer(const char* rate_key, const char* p99_key, Start start) {
    Contender peer{rate_key, p99_key, {}, nullptr, {}};
    peer.peer = start(place(rate_key), peer.missing);
    peers_.push_back(std::move(peer));
  }

  void measure_slice(bool backwards, Rounds& rounds) {
    if (!backwards) load_gnomond(rounds);
    for (size_t i = 0; i < peers_.size(); ++i) {
      Contender& peer = peers_[backwards ? peers_.size() - 1 - i : i];
      if (!peer.peer) continue;
      const bench::LoadResult result =
          peer.peer->load({.warm_seconds = kWarmSeconds, .seconds = slice_seconds_});
      peer.latencies.add(result.latencies);
      peer.per_second = result.per_second();
      rounds.add(peer.rate_key, peer.per_second);
    }
    if (backwards) load_gnomond(rounds);
    for (const Contender& peer : peers_) {
      if (!peer.peer) continue;
      rounds.add(peer.rate_key.starts_with("etcd") ? "reports_over_etcd_puts"
                                                   : "reports_over_pushgateway_posts",
                 per_second_ / peer.per_second);
    }
  }

  void load_gnomond(Rounds& rounds) {
    const bench::ReportRate rate = reporters_.load(kWarmSeconds, slice_seconds_);
    reports_.add(rate.load.latencies);
    per_second_ = rate.load.per_second();
    rounds.add("reports_per_second_64", per_second_);
    cpu_seconds_ += rate.daemon_cpu_seconds;
    reports_and_warm_up_ += per_second_ * (slice_seconds_ + kWarmSeconds);
  }

  int slices_;
  double slice_seconds_;
  TemporaryDirectory folder_;
  bench::BenchDaemon daemon_;
  bench::Reporters reporters_;
  bench::Latencies reports_;
  double per_second_ = 0;  // in the newest slice
  double cpu_seconds_ = 0, reports_and_warm_up_ = 0;
  std::vector<Contender> peers_;
};

void measure_in_turn(const RateOptions& options, Rounds& rounds, json::object& versions) {
  print_progress(options.peers
                     ? "reports of single steps, puts to etcd and posts to pushgateway in turn, 64 "
                       "connections"
                     : "reports of single steps, 64 connections");
  Turns(options).measure(rounds, versions);
}

void measure_batches(const RateOptions& options, Rounds& rounds) {
  print_progress("reports of a hundred steps, 8 connections");
  const TemporaryDirectory folder(options.folder);
  bench::BenchDaemon daemon(options.gnomond, folder.path(), "mode = \"observe\"\n");
  const bench::ReportRate rate =
      bench::measure_reports(daemon, {.connections = 8, .steps = 100, .seconds = options.seconds});
  rounds.add("batched_steps_per_second", rate.steps_per_second);
  rounds.add("batch_p99_ms", 1e3 * rate.load.latencies.quantile(0.99));
  rounds.add(
      "batched_step_cpu_microseconds",
      cpu_microseconds(rate.daemon_cpu_seconds, rate.steps_per_second * (options.seconds + 1)));
}

void measure_tls(const RateOptions& options, Rounds& rounds) {
  print_progress("the same in TLS, and connections that begin");
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
  rounds.add(
      "tls_report_cpu_microseconds",
      cpu_microseconds(rate.daemon_cpu_seconds, rate.steps_per_second * (options.seconds + 1)));
  const bench::ConnectionRate begun = bench::measure_tls_connections(*daemon, options.seconds / 2);
  rounds.add("tls_connections_per_second", begun.per_second);
  rounds.add("tls_connection_cpu_microseconds",
             cpu_microseconds(begun.daemon_cpu_seconds, static_cast<double>(begun.connections)));
}

void measure_directives(const RateOptions& options, bool saturated, Rounds& rounds) {
  print_progress(saturated ? "the same while reports come as fast as they are answered"
                           : "directives of a hundred runs that report ten times a second");
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

// Everything once, one after another, so that a busy moment of the machine meets all alike.
void measure_round(const RateOptions& options, Rounds& rounds, json::object& versions) {
  measure_in_turn(options, rounds, versions);
  measure_tls(options, rounds);
  measure_batches(options, rounds);
  measure_directives(options, false, rounds);
  measure_directives(options, true, rounds);
}

// "at 1.4 times etcd's rate in the middle of 15 slices in turn, ahead in 14".
std::string share_of(const json::object& result, const char* key, const char* whose) {
  if (!result.contains(key)) return {};
  const json::array& slices = result.at("rounds").at(key).as_array();
  const auto ahead =
      std::ranges::count_if(slices, [](const json::value& v) { return v.as_double() > 1; });
  return fmt::format("{:.2f} times {} rate (median of {} slices in turn, ahead in {})",
                     result.at(key).as_double(), whose, slices.size(), ahead);
}

}  // namespace

void print_progress(const char* what) { fmt::print(stderr, "bench controller: {}\n", what); }

json::object measure_rates(RateOptions options) {
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

void print_rates(const json::object& result) {
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
    for (const std::string& share :
         {share_of(result, "reports_over_etcd_puts", "etcd's"),
          share_of(result, "reports_over_pushgateway_posts", "pushgateway's")}) {
      if (!share.empty()) fmt::print("  reports came at {}\n", share);
    }
  }
  fmt::print("durable steps in batches of 100: {} a second\n", number("batched_steps_per_second"));
  fmt::print(
      "last result of a window to the directive at the trainer: p99 {} ms, {} ms when "
      "reports saturate the machine (heartbeats {} ms)\n",
      number("directive_p99_ms"), number("saturated_directive_p99_ms"),
      number("saturated_heartbeat_p99_ms"));
}

}  // namespace gnomon::cli
