#include "controller/daemon/daemon_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/file_access.h"
#include "base/files.h"
#include "base/named_file.h"
#include "base/redaction.h"
#include "controller/api/server.h"
#include "controller/decide/policy.h"
#include "protocol/toml_reader.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_lock.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr double kLongest = 1e9;  // seconds

class DaemonConfigReader {
 public:
  explicit DaemonConfigReader(const fs::path& file)
      : file_(file), root_(TomlTable::parse(read_config_file(file), file.string())) {
    config_.file = fs::absolute(file).string();
  }

  DaemonConfig read() {
    config_.ledger = path("ledger", config_.ledger);
    config_.listen = root_.text("listen", config_.listen);
    config_.policy = path("policy", "");
    config_.web_root = path("web_root", "");
    config_.threads = static_cast<int>(root_.integer("threads", config_.threads, 1, 256));
    config_.series_keep_seconds =
        root_.number("series_keep_seconds", config_.series_keep_seconds, 0, kLongest);
    read_log();
    read_limits();
    read_auth();
    read_checkpoints();
    read_tls();
    read_backup();
    read_retention();
    read_notifications();
    root_.refuse_unknown_keys();
    return std::move(config_);
  }

 private:
  static std::string read_config_file(const fs::path& file) {
    try {
      return read_named_file(file);
    } catch (const Error& error) {
      throw ConfigError("command line", 0, "--config", file.string(),
                        fmt::format("a file that can be read ({})", error.what()));
    }
  }

  std::string beside_file(const std::string& name) const {
    return name.empty() ? name
                        : fs::absolute(file_.parent_path() / name).lexically_normal().string();
  }
  std::string path(const std::string& key, const std::string& fallback) {
    return beside_file(root_.text(key, fallback));
  }

  void read_log() {
    TomlTable table = root_.table("log");
    config_.log.level = table.choice("level", config_.log.level,
                                     {"trace", "debug", "info", "warn", "error", "off"});
    config_.log.format = table.choice("format", config_.log.format, {"text", "logfmt", "json"});
    table.refuse_unknown_keys();
  }

  void read_limits() {
    TomlTable table = root_.table("limits");
    LimitsConfig& limits = config_.limits;
    limits.connections = table.integer("connections", limits.connections, 1, 1 << 20);
    limits.queued_writes = table.integer("queued_writes", limits.queued_writes, 1, 1 << 20);
    // One token has half, which must be enough for the largest body.
    limits.transfer_mib = table.integer("transfer_mib", limits.transfer_mib, 66, 1 << 20);
    limits.read_seconds = table.number("read_seconds", limits.read_seconds, 0.1, 3600);
    limits.idle_seconds = table.number("idle_seconds", limits.idle_seconds, 0.1, 86400);
    limits.drain_seconds = table.number("drain_seconds", limits.drain_seconds, 0, 3600);
    limits.stop_seconds = table.number("stop_seconds", limits.stop_seconds, 0, 3600);
    table.refuse_unknown_keys();
  }

  void read_auth() {
    TomlTable table = root_.table("auth");
    AuthSettings& auth = config_.auth;
    auth.tokens = beside_file(table.text("tokens", auth.tokens));
    const auto read_rate = [&table](const std::string& prefix, Rate& rate) {
      rate.per_second = table.number(prefix + "requests_per_second", rate.per_second, 0, 1e6);
      rate.burst = table.number(prefix + "request_burst", rate.burst, 1, 1e6);
    };
    read_rate("", auth.principal);
    read_rate("stranger_", auth.stranger);
    const int64_t half = std::max(int64_t{1}, config_.limits.connections / 2);
    auth.connections = table.integer("connections", half, 1, 1 << 20);
    table.refuse_unknown_keys();
  }

  void read_checkpoints() {
    TomlTable table = root_.table("checkpoints");
    for (const std::string& root : table.texts("roots", {})) {
      if (!fs::path(root).is_absolute()) {
        table.refuse("roots", "absolute paths, as trainers name their checkpoints by them");
      }
      config_.checkpoint_roots.push_back(fs::path(root).lexically_normal().string());
    }
    table.refuse_unknown_keys();
  }

  void read_tls() {
    TomlTable table = root_.table("tls");
    TlsConfig& tls = config_.tls;
    tls.files.certificate = beside_file(table.text("certificate", ""));
    tls.files.key = beside_file(table.text("key", ""));
    tls.files.ca = beside_file(table.text("client_ca", ""));
    const std::string clients =
        table.choice("client_certificates", "required", {"required", "optional"});
    if (clients == "optional") tls.client_certificates = ClientCertificates::kOptional;
    tls.look_seconds = table.number("look_seconds", tls.look_seconds, 0.1, 3600);
    const bool has_certificate = !tls.files.certificate.empty();
    if (has_certificate && tls.files.key.empty()) {
      table.refuse("certificate", "a certificate together with tls.key");
    }
    if (!has_certificate && !tls.files.key.empty()) {
      table.refuse("key", "a key together with tls.certificate");
    }
    if (!has_certificate && !tls.files.ca.empty()) {
      table.refuse("client_ca", "authorities of clients together with tls.certificate");
    }
    if (clients == "optional" && tls.files.ca.empty()) {
      table.refuse("client_certificates", "\"optional\" together with tls.client_ca");
    }
    table.refuse_unknown_keys();
  }

  void read_backup() {
    TomlTable table = root_.table("backup");
    BackupSettings& backup = config_.backup;
    backup.folder = beside_file(table.text("folder", backup.folder));
    backup.every_seconds = table.number("every_seconds", backup.every_seconds, 0, kLongest);
    backup.keep = table.integer("keep", backup.keep, 0, 1 << 20);
    table.refuse_unknown_keys();
  }

  void read_retention() {
    constexpr double kDays = 100'000;
    TomlTable table = root_.table("retention");
    RetentionSettings& days = config_.retention;
    days.stream_days = table.number("stream_days", days.stream_days, 0, kDays);
    days.events_days = table.number("events_days", days.events_days, 0, kDays);
    days.notices_days = table.number("notices_days", days.notices_days, 0, kDays);
    days.statistics_days = table.number("statistics_days", days.statistics_days, 0, kDays);
    days.device_health_days = table.number("device_health_days", days.device_health_days, 0, kDays);
    days.steps_days = table.number("steps_days", days.steps_days, 0, kDays);
    days.replay_steps_days = table.number("replay_steps_days", days.replay_steps_days, 0, kDays);
    table.refuse_unknown_keys();
  }

  void read_notifications() {
    std::string& url = config_.notifications.external_url;
    url = root_.text("external_url", "");
    if (!url.empty() && !url.starts_with("http://") && !url.starts_with("https://")) {
      root_.refuse("external_url", "http://... or https://..., where people reach the page");
    }
    config_.notifications.receivers = notify::read_receivers(root_, file_.parent_path());
  }

  fs::path file_;
  TomlTable root_;
  DaemonConfig config_;
};

}  // namespace

DaemonConfig read_daemon_config(const fs::path& file) {
  try {
    return DaemonConfigReader(file).read();
  } catch (const ConfigError& error) {  // a receiver's URL may be a secret
    throw without_secrets(error);
  }
}

std::string read_default_policy(const DaemonConfig& config) {
  if (config.policy.empty()) return decide::Policy().to_toml();
  std::string policy;
  try {
    policy = read_named_file(config.policy);
  } catch (const Error& error) {
    throw ConfigError(config.file.empty() ? "command line" : config.file, 0,
                      config.file.empty() ? "--policy" : "policy", config.policy,
                      fmt::format("a file that can be read ({})", error.what()));
  }
  decide::Policy::parse(policy, config.policy);
  return policy;
}

ServerTls load_tls(const DaemonConfig& config) {
  try {
    return make_server_tls(config.tls.files, config.tls.client_certificates);
  } catch (const TlsFileError& error) {
    using Which = TlsFileError::Which;
    const char* key = error.which() == Which::kCa    ? "tls.client_ca"
                      : error.which() == Which::kKey ? "tls.key"
                                                     : "tls.certificate";
    throw ConfigError(config.file, 0, key, error.file(),
                      fmt::format("{} ({})", error.accepted(), error.wrong()));
  }
}

// Beyond this machine only who can be told apart is let in, and nobody listens on the way.
static void check_listen(const DaemonConfig& config) {
  const auto refuse = [&config](const std::string& accepted) {
    return without_secrets({config.file.empty() ? "command line" : config.file, 0,
                            config.file.empty() ? "--listen" : "listen", config.listen, accepted});
  };
  ServerOptions options;
  try {
    options = parse_listen(config.listen);
  } catch (const ConfigError& error) {
    throw refuse(error.accepted());
  }
  const bool has_tls = !config.tls.files.certificate.empty();
  if (!is_loopback(options) && (config.auth.tokens.empty() || !has_tls)) {
    throw refuse(
        "a loopback address (127.0.0.1 or [::1]), or else both [tls] and [auth] tokens: "
        "beyond this machine everybody could read and steer the runs");
  }
}

static void check_ledger(const DaemonConfig& config) {
  try {
    check_ledger_place(config.ledger);
  } catch (const LedgerError& error) {
    throw ConfigError(
        config.file.empty() ? "command line" : config.file, 0,
        config.file.empty() ? "--ledger" : "ledger", config.ledger.empty() ? "\"\"" : config.ledger,
        fmt::format("the name of a file, in a folder that can be written ({})", error.what()));
  }
}

static void check_backup(const DaemonConfig& config) {
  const BackupSettings& backup = config.backup;
  const auto refuse = [&config](const std::string& accepted) {
    const std::string& folder = config.backup.folder;
    throw ConfigError(config.file, 0, "backup.folder", folder.empty() ? "\"\"" : folder, accepted);
  };
  if (backup.folder.empty()) {
    if (backup.every_seconds > 0) refuse("a folder, since backup.every_seconds is not 0");
    return;
  }
  // One that cannot be written keeps no daemon from its runs: doubtful_files() warns.
  if (!is_folder_at(backup.folder)) {
    refuse(fmt::format("a folder that is there ({}; is its disk mounted?)",
                       why_not_writable(backup.folder)));
  }
}

void check_daemon_config(const DaemonConfig& config) {
  check_ledger(config);
  check_listen(config);
  if (!config.auth.tokens.empty()) {
    try {
      read_tokens(config.auth.tokens);
    } catch (const ConfigError& error) {
      if (!error.file().empty()) throw;
      throw ConfigError(config.file, 0, "auth.tokens", error.value(), error.accepted());
    }
  }
  read_default_policy(config);
  if (!config.tls.files.certificate.empty()) load_tls(config);
  if (!config.web_root.empty() && !is_folder_at(config.web_root)) {
    throw ConfigError(config.file, 0, "web_root", config.web_root, "a folder");
  }
  check_backup(config);
}

std::vector<std::string> keys_for_restart(const DaemonConfig& running, const DaemonConfig& wanted) {
  std::vector<std::string> keys;
  if (wanted.ledger != running.ledger) keys.emplace_back("ledger");
  if (wanted.listen != running.listen) keys.emplace_back("listen");
  if (wanted.web_root != running.web_root) keys.emplace_back("web_root");
  if (wanted.threads != running.threads) keys.emplace_back("threads");
  if (wanted.series_keep_seconds != running.series_keep_seconds) {
    keys.emplace_back("series_keep_seconds");
  }
  if (wanted.log.format != running.log.format) keys.emplace_back("log.format");
  if (wanted.limits != running.limits) keys.emplace_back("limits");
  if (wanted.auth.tokens.empty() != running.auth.tokens.empty()) keys.emplace_back("auth.tokens");
  if (wanted.checkpoint_roots != running.checkpoint_roots) keys.emplace_back("checkpoints.roots");
  const bool had_tls = !running.tls.files.certificate.empty();
  const bool wants_tls = !wanted.tls.files.certificate.empty();
  if (had_tls != wants_tls) keys.emplace_back("tls");
  return keys;
}

}  // namespace gnomon
