// What gnomond is started with: a TOML file, and the command line over it. docs/daemon.md has a
// table made of these descriptions; examples/gnomond.toml has all keys with their defaults.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "controller/auth/authenticator.h"
#include "controller/backups/backups.h"
#include "controller/daemon/retention.h"
#include "controller/notify/notifier.h"
#include "protocol/settings.h"
#include "protocol/tls_context.h"

namespace gnomon {

// What would be accepted in place of such a text; empty when it is fine.
std::string absolute_path_error(std::string_view path);
std::string external_url_error(std::string_view url);

inline constexpr std::array<std::string_view, 6> kLogLevels = {"trace", "debug", "info",
                                                               "warn",  "error", "off"};
inline constexpr std::array<std::string_view, 3> kLogFormats = {"text", "logfmt", "json"};
// In the order of ClientCertificates.
inline constexpr std::array<std::string_view, 2> kClientCertificates = {"required", "optional"};

struct LogConfig {
  std::string level = "info";
  std::string format = "text";

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("level", &LogConfig::level,
      Setting{.words = kLogLevels, .help = "Lowest level that is logged."});
    v("format", &LogConfig::format,
      Setting{
          .words = kLogFormats,
          .reload = Reload::kRestart,
          .help =
              "One line on stderr, in UTC; the last two have `ts` (RFC 3339), `level`, `msg`."});
  }
  bool operator==(const LogConfig&) const = default;
};

struct LimitsConfig {
  int64_t connections = 1024;
  int64_t queued_writes = 1024;
  int64_t transfer_mib = 128;
  double read_seconds = 30;
  double idle_seconds = 120;
  double drain_seconds = 0;
  double stop_seconds = 10;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = LimitsConfig;
    constexpr Reload kRestart = Reload::kRestart;
    v("connections", &S::connections,
      Setting{.range = {1, 1 << 20},
              .reload = kRestart,
              .help = "Beyond: the oldest connection without a known token is closed; if there is "
                      "none, the new one gets 503. The daemon raises its limit of file descriptors "
                      "to 128 more, or refuses to start."});
    v("queued_writes", &S::queued_writes,
      Setting{.range = {1, 1 << 20},
              .reload = kRestart,
              .help = "Writes that may wait for the ledger. Beyond: 503."});
    v("transfer_mib", &S::transfer_mib,
      Setting{.range = {66, 1 << 20},  // one token has half: enough for the largest body
              .reload = kRestart,
              .help = "Bodies in flight, without the first 64 KiB of each; half for one token. The "
                      "largest body is 32 MiB. Beyond: 503 for large bodies."});
    v("read_seconds", &S::read_seconds,
      Setting{.range = {0.1, 3600}, .reload = kRestart, .help = "Longest time of a request."});
    v("idle_seconds", &S::idle_seconds,
      Setting{.range = {0.1, 86400},
              .reload = kRestart,
              .help = "Longest pause between requests of a connection."});
    v("drain_seconds", &S::drain_seconds,
      Setting{
          .range = {0, 3600},
          .reload = kRestart,
          .help = "Time that the daemon serves after SIGTERM, not ready and without new leases."});
    v("stop_seconds", &S::stop_seconds,
      Setting{.range = {0, 3600},
              .reload = kRestart,
              .help = "Time for requests in flight at the end."});
  }
  bool operator==(const LimitsConfig&) const = default;
};

struct CheckpointsConfig {
  std::vector<std::string> roots;  // absolute, normal

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("roots", &CheckpointsConfig::roots,
      Setting{.check = absolute_path_error,
              .reload = Reload::kRestart,
              .accepted = "absolute paths",
              .help = "Folders that reported checkpoints must be in; empty: any."});
  }
  void settle(const TomlTable& table);
  bool operator==(const CheckpointsConfig&) const = default;
};

struct TlsConfig {
  TlsFiles files;  // without a certificate connections are plain
  ClientCertificates client_certificates = ClientCertificates::kRequired;
  double look_seconds = 10;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v(
        "certificate", [](auto& s) -> auto& { return s.files.certificate; },
        Setting{.file = true,
                .reload = Reload::kNotSwitched,
                .help = "PEM: the certificate and its chain. Empty: plain HTTP."});
    v(
        "key", [](auto& s) -> auto& { return s.files.key; },
        Setting{.file = true, .help = "PEM: its key, not encrypted."});
    v(
        "client_ca", [](auto& s) -> auto& { return s.files.ca; },
        Setting{.file = true,
                .help = "PEM: authorities of client certificates. Empty: none are requested."});
    v("client_certificates", &TlsConfig::client_certificates,
      Setting{.words = kClientCertificates,
              .help = "Client certificates; `optional` needs `tls.client_ca`."});
    v("look_seconds", &TlsConfig::look_seconds,
      Setting{.range = {0.1, 3600}, .help = "Interval between checks of these files."});
  }
  void settle(const TomlTable& table) const;
};

struct DaemonConfig {
  std::string file;  // empty: there is none
  std::string ledger = "ledger.sqlite";
  std::string listen = "127.0.0.1:7717";
  std::string policy;
  std::string web_root;
  int threads = 2;
  double series_keep_seconds = 3600;
  LogConfig log;
  LimitsConfig limits;
  AuthSettings auth;
  CheckpointsConfig checkpoints;
  TlsConfig tls;
  BackupSettings backup;
  RetentionSettings retention;
  notify::NotifierSettings notifications;  // [[notify]] and external_url

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = DaemonConfig;
    constexpr Reload kRestart = Reload::kRestart;
    v("ledger", &S::ledger,
      Setting{
          .file = true,
          .reload = kRestart,
          .help =
              "SQLite file, created when absent. One daemon each; a link must lead to a file."});
    v("listen", &S::listen,
      Setting{
          .reload = kRestart,
          .accepted = "`ADDRESS:PORT`",
          .help =
              "Port 0: any free one. Beyond loopback, `[tls]` and `auth.tokens` are required."});
    v("policy", &S::policy,
      Setting{.file = true,
              .help = "Policy of new runs; empty: built-in. `PUT /v1/runs/{run}/policy` changes a "
                      "run's own."});
    v("web_root", &S::web_root,
      Setting{.file = true,
              .reload = kRestart,
              .accepted = "a folder",
              .help = "Files of the page; empty: a plain page."});
    v("threads", &S::threads,
      Setting{.range = {1, 256}, .reload = kRestart, .help = "Server threads."});
    v("series_keep_seconds", &S::series_keep_seconds,
      Setting{.range = rules::kSeconds,
              .reload = kRestart,
              .help = "Time that an ended run's metrics stay."});
    v(
        "external_url", [](auto& s) -> auto& { return s.notifications.external_url; },
        Setting{.check = external_url_error,
                .accepted = "`http://…` or `https://…`",
                .help = "The page's address, for links in notifications."});
    v("log", &S::log, Setting{});
    v("limits", &S::limits, Setting{});
    v("auth", &S::auth, Setting{});
    v("checkpoints", &S::checkpoints, Setting{});
    v("tls", &S::tls, Setting{});
    v("backup", &S::backup, Setting{});
    v("retention", &S::retention, Setting{});
    v(
        "notify", [](auto& s) -> auto& { return s.notifications.receivers; }, Setting{});
  }
  void settle(const TomlTable& table);
};

// Reads a file, and those with the secrets of receivers. Relative paths in it are relative to its
// folder. Throws ConfigError with the line, for unknown keys too; of a URL it has scheme and host.
DaemonConfig read_daemon_config(const std::filesystem::path& file);

// The policy of new runs: the file's text, or the built-in one. Throws ConfigError.
std::string read_default_policy(const DaemonConfig& config);

// What connections use; of a configuration that has TLS. Throws ConfigError.
ServerTls load_tls(const DaemonConfig& config);

// Checks what read_daemon_config() does not look at: that the files that the configuration names
// are there and are what they should be. Throws ConfigError.
void check_daemon_config(const DaemonConfig& config);

// Keys in which the two differ and that a daemon which runs does not take.
std::vector<std::string> keys_for_restart(const DaemonConfig& running, const DaemonConfig& wanted);

}  // namespace gnomon
