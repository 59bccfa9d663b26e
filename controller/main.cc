// gnomond: the controller daemon's command line.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <optional>

#include "base/command_line.h"
#include "base/errors.h"
#include "base/failpoint.h"
#include "base/signals.h"
#include "base/version.h"
#include "controller/daemon/daemon.h"
#include "controller/daemon/log_setup.h"
#include "controller/daemon/named_files.h"
#include "storage/ledger_connection.h"

namespace gnomon {
namespace {

// What the command line says; what it does not say is the file's.
struct CommandLine {
  std::string config;
  std::optional<std::string> ledger, listen, policy, web_root, log_level, log_format;
  std::optional<double> series_keep_seconds;
  std::string port_file;
  std::string checked;  // check-config's file

  DaemonConfig read() const {
    DaemonConfig result = config.empty() ? DaemonConfig() : read_daemon_config(config);
    if (ledger) result.ledger = *ledger;
    if (listen) result.listen = *listen;
    if (policy) result.policy = *policy;
    if (web_root) result.web_root = *web_root;
    if (log_level) result.log.level = *log_level;
    if (log_format) result.log.format = *log_format;
    if (series_keep_seconds) result.series_keep_seconds = *series_keep_seconds;
    check_daemon_config(result);
    return result;
  }
};

void add_options(Command& app, CommandLine& line) {
  const DaemonConfig defaults;
  app.add_option("--config", line.config, "TOML file; options given besides it are stronger");
  app.add_option("--ledger", line.ledger,
                 fmt::format("SQLite file, by default {}; made when absent, one daemon each",
                             defaults.ledger));
  app.add_option(
      "--listen", line.listen,
      fmt::format(
          "ADDRESS:PORT, by default {}; port 0 takes any free one. Beyond loopback addresses "
          "only with [tls] and [auth] tokens in the file of --config",
          defaults.listen));
  app.add_option("--port-file", line.port_file, "write the port here once it is open");
  app.add_option("--policy", line.policy,
                 "policy (TOML) of new runs; the built-in one when absent");
  app.add_option("--web-root", line.web_root, "folder of the web page; a plain page when absent")
      ->check(existing_directory());
  app.add_option(
         "--series-keep", line.series_keep_seconds,
         fmt::format("seconds for which the metrics of an ended run are kept, by default {}",
                     defaults.series_keep_seconds))
      ->check(in_range(0.0, 1e9));
  app.add_option("--log-level", line.log_level, "what is less important is not logged")
      ->check(one_of(std::vector<std::string>(kLogLevels.begin(), kLogLevels.end())));
  app.add_option("--log-format", line.log_format, "of a line")
      ->check(one_of(std::vector<std::string>(kLogFormats.begin(), kLogFormats.end())));
  app.footer(
      "Example:\n  gnomond --ledger ledger.sqlite --listen 127.0.0.1:7717 --policy policy.toml\n"
      "  gnomond --config /etc/gnomon/gnomond.toml\n\n"
      "`gnomon policy show` prints the built-in policy. SIGHUP reads the configuration and the "
      "policy again;\nwhat cannot be read is logged and the last good one stays. SIGTERM and "
      "SIGINT "
      "end the daemon in order;\nkilled in any way, it goes on from its ledger when it is started "
      "again.\n\n"
      "Exit status: 0 ended in order; 1 failed, or not started since a disk is full; 2 not "
      "started, "
      "and nothing left\nbehind (command line, policy, port or ledger cannot be had).");
}

int check_config(const CommandLine& line) {
  try {
    const DaemonConfig config = read_daemon_config(line.checked);
    check_daemon_config(config);
    const auto now = static_cast<double>(std::time(nullptr));
    for (const std::string& found : describe_named_files(config, now)) fmt::print("{}\n", found);
    for (const std::string& sentence : doubtful_files(config)) {
      std::fprintf(stderr, "gnomond: warning: %s\n", sentence.c_str());
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "gnomond: %s\n", error.what());
    return 2;
  }
  fmt::print("{}: good\n", line.checked);
  return 0;
}

// What passes by itself, or when somebody makes room, so that another try makes sense.
bool is_disk_full(const std::exception& error) {
  if (const auto* ledger = dynamic_cast<const LedgerError*>(&error)) return ledger->disk_full();
  const auto* system = dynamic_cast<const SystemError*>(&error);
  return system && system->disk_full();
}

int refuse_start(const std::exception& error) {
  const bool full = is_disk_full(error);
  std::fprintf(stderr, "gnomond: %s%s\n", error.what(),
               full ? "; make room there and start it again: old backups, ledgers that were put "
                      "aside (*.replaced-*), checkpoints, logs"
                    : "");
  return full ? 1 : 2;
}

int serve(const CommandLine& line) {
  std::unique_ptr<Daemon> daemon;
  try {
    const DaemonConfig config = line.read();
    const std::string failpoints = failpoint::set_from_environment();
    start_log(config.log);
    for (const std::string& sentence : doubtful_files(config)) spdlog::warn("{}", sentence);
    if (!failpoints.empty()) {
      spdlog::warn("GNOMON_FAILPOINTS is set, this is a test: {}", failpoints);
    }
    block_signals(kDaemonSignals);  // before, a signal just ends the process
    daemon = std::make_unique<Daemon>(
        config, [&line] { return line.read(); }, line.port_file);
  } catch (const std::exception& error) {
    return refuse_start(error);
  }
  return daemon->serve() ? 0 : 1;
}

int run(int argc, char** argv) {
  CommandLine line;
  Command app("gnomond: supervises FP8 training runs with BF16 shadows", "gnomond");
  app.set_version_flag(fmt::format("gnomond {} ({}, {})", kVersion, kRevision, kBuildType));
  add_options(app, line);
  Command* check = app.add_subcommand(
      "check-config",
      "Reads a configuration and what it names, and says what it found or what is wrong.");
  check->add_option("FILE", line.checked, "TOML file")->required();
  check->footer(
      "Example:\n  gnomond check-config /etc/gnomon/gnomond.toml\n\n"
      "Prints a line for each file that is named, and warns of those that everybody may write, or "
      "read although\nthey are secret.\n\n"
      "Exit status: 0 good; 2 not, with file, line, key and what would be accepted.");
  if (const auto status = app.parse(argc, argv, 2)) return *status;
  ignore_write_signals();
  return check->parsed() ? check_config(line) : serve(line);
}

}  // namespace
}  // namespace gnomon

int main(int argc, char** argv) {
  // A reload may be asked for before there is anything to read again (systemd's NotifyAccess, a
  // script that does not wait): it waits until the daemon serves.
  gnomon::block_signals(std::array{SIGHUP});
  try {
    return gnomon::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomond: %s\n", error.what());
    return 1;
  }
}
