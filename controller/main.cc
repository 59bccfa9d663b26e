// gnomond: the controller daemon.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "base/errors.h"
#include "base/files.h"
#include "base/version.h"
#include "controller/api/server.h"
#include "controller/decide/policy.h"

namespace gnomon {
namespace {

struct Options {
  std::string ledger = "ledger.sqlite";
  std::string listen = "127.0.0.1:7717";
  std::string port_file;
  std::string policy;
  std::string web_root;
  std::string log_level = "info";
  double series_keep_seconds = 3600;
};

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Router make_router(Services& services) {
  std::vector<Route> routes;
  for (auto make : {trainer_routes, verifier_routes, view_routes, policy_routes, daemon_routes}) {
    for (Route& route : make(services)) {
      routes.push_back(std::move(route));
    }
  }
  return Router(std::move(routes), page_route(services));
}

// Posts the end of each lease whose time is over. When the ledger cannot take it now, the next look
// does.
void expire_leases(Ledger& ledger, Leases& leases) {
  for (int64_t lease : leases.overdue()) {
    bool accepted = ledger.post(
        [&leases, lease](LedgerTransaction& transaction) { leases.expire(transaction, lease); },
        [lease](std::exception_ptr error) {
          if (error) {
            spdlog::warn("lease {} is over but the ledger could not record it", lease);
          }
        });
    if (!accepted) {
      return;
    }
  }
}

std::string read_policy(const std::string& file) {
  try {
    return read_file(file);
  } catch (const SystemError& error) {
    throw ConfigError("command line", 0, "--policy", file,
                      fmt::format("a file that can be read ({})", error.what()));
  }
}

int serve(const Options& options) {
  std::string policy =
      options.policy.empty() ? decide::Policy().to_toml() : read_policy(options.policy);
  decide::Policy::parse(policy, options.policy.empty() ? "default policy" : options.policy);
  ServerOptions server_options = parse_listen(options.listen);

  std::unique_ptr<Ledger> ledger;
  Metrics metrics([&ledger] { return ledger->queue_length(); });
  ledger = std::make_unique<Ledger>(LedgerOptions{
      options.ledger, 1024, 256, 2, [&metrics](double seconds) { metrics.commit(seconds); }});
  Bells bells;
  Supervisor supervisor(metrics, bells, {policy, options.series_keep_seconds}, wall_seconds,
                        steady_seconds);
  Leases leases(supervisor, metrics, bells);
  ledger->read([&](Connection& connection) { supervisor.restore(connection); });
  ledger->write([&](LedgerTransaction& transaction) { leases.restore(transaction); });

  Services services{*ledger, supervisor, leases, metrics, bells, options.web_root};
  Server server(server_options, services, make_router(services));
  server.every(std::chrono::milliseconds(100), [&] { expire_leases(*ledger, leases); });
  if (!options.port_file.empty()) {
    write_file_atomically(options.port_file, fmt::format("{}\n", server.port()));
  }
  spdlog::info("gnomond {} ({}) listens on {}:{}, ledger {}", kVersion, kRevision,
               server_options.address, server.port(), options.ledger);
  server.run();
  // Before the server's coroutines: writes under way still point into them.
  ledger.reset();
  spdlog::info("stopped; everything acknowledged is in {}", options.ledger);
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("gnomond: supervises FP8 training runs with BF16 shadows", "gnomond");
  app.set_version_flag("--version",
                       fmt::format("gnomond {} ({}, {})", kVersion, kRevision, kBuildType));
  app.add_option("--ledger", options.ledger, "SQLite file; made when absent, one daemon each")
      ->capture_default_str();
  app.add_option("--listen", options.listen,
                 "ADDRESS:PORT, loopback only; port 0 takes any free one")
      ->capture_default_str();
  app.add_option("--port-file", options.port_file, "write the port here once it is open");
  app.add_option("--policy", options.policy,
                 "policy (TOML) of new runs; the built-in one when absent");
  app.add_option("--web-root", options.web_root, "folder of the web page; a plain page when absent")
      ->check(CLI::ExistingDirectory);
  app.add_option("--series-keep", options.series_keep_seconds,
                 "seconds for which the metrics of an ended run are kept")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.footer(
      "Example:\n  gnomond --ledger ledger.sqlite --listen 127.0.0.1:7717 --policy policy.toml\n\n"
      "`gnomon policy show` prints the built-in policy. SIGTERM and SIGINT end the daemon in "
      "order; "
      "killed in any\nway, it goes on from its ledger when it is started again.\n\n"
      "Exit status: 0 ended in order; 1 failed (port or ledger in use, disk); 2 the command line "
      "or "
      "the policy cannot be accepted.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("gnomond"));
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error like a full disk
  return serve(options);
}

}  // namespace
}  // namespace gnomon

int main(int argc, char** argv) {
  try {
    return gnomon::run(argc, argv);
  } catch (const gnomon::ConfigError& error) {
    std::fprintf(stderr, "gnomond: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomond: %s\n", error.what());
    return 1;
  }
}
