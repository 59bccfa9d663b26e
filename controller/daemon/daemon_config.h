// What gnomond is started with: a TOML file, and the command line over it. docs/daemon.md has a
// table made of these descriptions; examples/gnomond.toml has all keys with their defaults.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "controller/auth/guard.h"
#include "controller/daemon/backups.h"
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
      Setting{.words = kLogLevels, .help = "What is less important is not logged."});
    v("format", &LogConfig::format,
      Setting{.words = kLogFormats,
              .reload = Reload::kRestart,
              .help = "On stderr, a line each, with the time in UTC; of the last two with the "
                      "members `ts` (RFC 3339, UTC), `level`, `msg`."});
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
              .help = "When all are in use, the client that has been connected the longest without "
                      "a known token is dropped to make room; where there is none, the newcomer "
                      "gets 503. Each takes a file descriptor: the daemon raises its limit to 128 "
                      "above this, and refuses to start when it may not."});
    v("queued_writes", &S::queued_writes,
      Setting{.range = {1, 1 << 20},
              .reload = kRestart,
              .help = "That wait for the ledger. Beyond: 503."});
    v("transfer_mib", &S::transfer_mib,
      Setting{.range = {66, 1 << 20},  // one token has half: enough for the largest body
              .reload = kRestart,
              .help = "Request and answer bodies in flight, over all connections, the first 64 KiB "
                      "of each not counted. One token may use half, so that the largest body (32 "
                      "MiB) fits. Beyond: 503 for large bodies, while small ones are still "
                      "served."});
    v("read_seconds", &S::read_seconds,
      Setting{
          .range = {0.1, 3600}, .reload = kRestart, .help = "For a request once it has begun."});
    v("idle_seconds", &S::idle_seconds,
      Setting{.range = {0.1, 86400},
              .reload = kRestart,
              .help = "Between two requests of a connection."});
    v("drain_seconds", &S::drain_seconds,
      Setting{.range = {0, 3600},
              .reload = kRestart,
              .help = "After SIGTERM the daemon serves for this long, but is not ready and gives "
                      "out no leases."});
    v("stop_seconds", &S::stop_seconds,
      Setting{.range = {0, 3600},
              .reload = kRestart,
              .help = "For requests in flight when the daemon stops."});
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
              .help = "Folders below which the checkpoints lie that trainers may report; empty: "
                      "anywhere."});
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
                .help = "PEM: the certificate with those that lead to its authority (see below). "
                        "Empty: plain HTTP."});
    v(
        "key", [](auto& s) -> auto& { return s.files.key; },
        Setting{.file = true, .help = "PEM: the certificate's key, not encrypted."});
    v(
        "client_ca", [](auto& s) -> auto& { return s.files.ca; },
        Setting{.file = true,
                .help =
                    "PEM of the authorities that clients' certificates come from. Empty: none is "
                    "asked for."});
    v("client_certificates", &TlsConfig::client_certificates,
      Setting{.words = kClientCertificates,
              .help = "Whether clients must have a certificate. `optional` only with "
                      "`tls.client_ca`."});
    v("look_seconds", &TlsConfig::look_seconds,
      Setting{.range = {0.1, 3600}, .help = "How often these files are looked at."});
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
      Setting{.file = true,
              .reload = kRestart,
              .help = "The SQLite file. It is made when absent (the log says so). One daemon each; "
                      "a link must lead to a file."});
    v("listen", &S::listen,
      Setting{.reload = kRestart,
              .accepted = "`ADDRESS:PORT`",
              .help = "Port 0 takes any free one. Other than loopback addresses need `[tls]` and "
                      "`auth.tokens`."});
    v("policy", &S::policy,
      Setting{.file = true,
              .help = "The policy of runs that register; empty: the built-in one. A run's own is "
                      "changed by `PUT /v1/runs/{run}/policy`."});
    v("web_root", &S::web_root,
      Setting{.file = true,
              .reload = kRestart,
              .accepted = "a folder",
              .help = "Of the page; empty: a plain page."});
    v("threads", &S::threads,
      Setting{.range = {1, 256}, .reload = kRestart, .help = "Of the server."});
    v("series_keep_seconds", &S::series_keep_seconds,
      Setting{.range = rules::kSeconds,
              .reload = kRestart,
              .help = "For how long the metrics of an ended run are kept."});
    v(
        "external_url", [](auto& s) -> auto& { return s.notifications.external_url; },
        Setting{.check = external_url_error,
                .accepted = "`http://…` or `https://…`",
                .help = "Where people reach the page: links in notifications."});
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
