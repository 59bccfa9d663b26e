// What gnomond is started with: a TOML file, and the command line over it. docs/daemon.md lists
// every key; examples/gnomond.toml has all of them with their defaults.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "controller/auth/guard.h"
#include "controller/backups.h"
#include "controller/notify/notifier.h"
#include "controller/retention.h"
#include "net/tls_context.h"

namespace gnomon {

struct LogConfig {
  std::string level = "info";   // trace, debug, info, warn, error, off
  std::string format = "text";  // text, logfmt, json
  bool operator==(const LogConfig&) const = default;
};

struct LimitsConfig {
  int64_t connections = 1024;    // beyond it: 503
  int64_t queued_writes = 1024;  // beyond it: 503
  int64_t transfer_mib = 128;    // of bodies and answers on their way; beyond it: 503
  double read_seconds = 30;      // for a request once it has begun
  double idle_seconds = 120;     // between two requests of a connection
  double drain_seconds = 0;      // unready but serving, between SIGTERM and the stop
  double stop_seconds = 10;      // for requests in flight when the daemon stops
  bool operator==(const LimitsConfig&) const = default;
};

struct TlsConfig {
  TlsFiles files;  // without a certificate connections are plain
  ClientCertificates client_certificates = ClientCertificates::kRequired;
  double look_seconds = 10;  // how often the files are looked at
};

struct DaemonConfig {
  std::string file;  // empty: there is none
  std::string ledger = "ledger.sqlite";
  std::string listen = "127.0.0.1:7717";
  std::string policy;                 // file; the built-in one when empty
  std::string web_root;               // a plain page when empty
  int threads = 2;                    // of the server
  double series_keep_seconds = 3600;  // metrics of an ended run
  LogConfig log;
  LimitsConfig limits;
  AuthSettings auth;
  std::vector<std::string> checkpoint_roots;  // folders; empty: anywhere
  TlsConfig tls;
  BackupSettings backup;
  RetentionSettings retention;
  notify::NotifierSettings notifications;  // [[notify]] and external_url
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

// Keys in which the two differ and that are only read at the start.
std::vector<std::string> keys_for_restart(const DaemonConfig& running, const DaemonConfig& wanted);

}  // namespace gnomon
