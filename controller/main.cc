// gnomond: the controller daemon.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

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
  for (auto make : {trainer_routes, verifier_routes, view_routes, policy_routes, statistics_routes,
                    daemon_routes}) {
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

void log_failure(const std::string& what, std::exception_ptr error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& failure) {
    spdlog::warn("{}: {}", what, failure.what());
  }
}

// Posts what has waited for its time: deadlines of runs, old rows of the stream. What the ledger
// cannot take now, the next look posts again.
void keep_time(Ledger& ledger, Supervisor& supervisor) {
  for (int64_t run : supervisor.due_runs()) {
    bool accepted = ledger.post(
        [&supervisor, run](LedgerTransaction& transaction) { supervisor.tick(transaction, run); },
        [run](std::exception_ptr error) {
          log_failure(fmt::format("a deadline of {} is over, unheard", run_name(run)), error);
        });
    if (!accepted) {
      return;
    }
  }
  if (supervisor.trim_due()) {
    [[maybe_unused]] bool accepted = ledger.post(
        [&supervisor](LedgerTransaction& transaction) { supervisor.trim_stream(transaction); },
        [](std::exception_ptr error) { log_failure("the stream was not trimmed", error); });
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

std::string checked_policy(const Options& options) {
  std::string policy =
      options.policy.empty() ? decide::Policy().to_toml() : read_policy(options.policy);
  decide::Policy::parse(policy, options.policy.empty() ? "default policy" : options.policy);
  return policy;
}

// The port is known only later; where it will be written must be fit for it before anything is
// made.
void check_port_file(const std::string& port_file) {
  if (port_file.empty()) {
    return;
  }
  std::filesystem::path folder = std::filesystem::absolute(port_file).parent_path();
  std::error_code unreadable;
  if (!std::filesystem::is_directory(folder, unreadable) || ::access(folder.c_str(), W_OK) != 0 ||
      std::filesystem::is_directory(port_file, unreadable)) {
    throw ConfigError("command line", 0, "--port-file", port_file,
                      "a file in a folder that can be written");
  }
}

// Everything the daemon consists of, in the order in which it comes to be; what cannot be had ends
// the start before the ledger is touched, or leaves no trace of it.
class Daemon {
 public:
  explicit Daemon(const Options& options)
      : options_(options),
        policy_(checked_policy(options)),
        metrics_([this] { return ledger_ ? ledger_->queue_length() : 0; }),
        supervisor_(metrics_, bells_, {policy_, options.series_keep_seconds}, wall_seconds,
                    steady_seconds),
        leases_(supervisor_, metrics_, bells_),
        server_((check_port_file(options.port_file), parse_listen(options.listen))) {
    ledger_ = std::make_unique<Ledger>(LedgerOptions{
        options.ledger, 1024, 256, 2, [this](double seconds) { metrics_.commit(seconds); }});
    ledger_->read([this](Connection& connection) { supervisor_.restore(connection); });
    ledger_->write([this](LedgerTransaction& transaction) { leases_.restore(transaction); });
    if (!options.port_file.empty()) {
      write_file_atomically(options.port_file, fmt::format("{}\n", server_.port()));
    }
  }

  void serve() {
    services_.reset(
        new Services{*ledger_, supervisor_, leases_, metrics_, bells_, options_.web_root});
    router_ = std::make_unique<Router>(make_router(*services_));
    server_.every(std::chrono::milliseconds(100), [this] { expire_leases(*ledger_, leases_); });
    server_.every(std::chrono::seconds(1), [this] { gnomon::keep_time(*ledger_, supervisor_); });
    spdlog::info("gnomond {} ({}) listens on {}, port {}, ledger {}", kVersion, kRevision,
                 options_.listen, server_.port(), options_.ledger);
    server_.run(*services_, *router_);
    // Before the server's coroutines: writes under way still point into them.
    ledger_.reset();
    spdlog::info("stopped; everything acknowledged is in {}", options_.ledger);
  }

 private:
  Options options_;
  std::string policy_;
  Metrics metrics_;
  Bells bells_;
  Supervisor supervisor_;
  Leases leases_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<Router> router_;
  Server server_;
  std::unique_ptr<Ledger> ledger_;  // last: its threads work with the others until they are joined
};

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
      "Exit status: 0 ended in order; 1 failed; 2 not started, and nothing left behind (command "
      "line, policy,\nport or ledger cannot be had).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("gnomond"));
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error like a full disk
  std::unique_ptr<Daemon> daemon;
  try {
    daemon = std::make_unique<Daemon>(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomond: %s\n", error.what());
    return 2;
  }
  daemon->serve();
  return 0;
}

}  // namespace
}  // namespace gnomon

int main(int argc, char** argv) {
  try {
    return gnomon::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomond: %s\n", error.what());
    return 1;
  }
}
