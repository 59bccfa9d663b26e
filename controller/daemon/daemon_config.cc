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
#include "storage/ledger_connection.h"
#include "storage/ledger_lock.h"

namespace gnomon {
namespace fs = std::filesystem;

std::string absolute_path_error(std::string_view path) {
  return fs::path(path).is_absolute()
             ? ""
             : "absolute paths, as trainers name their checkpoints by them";
}

std::string external_url_error(std::string_view url) {
  const bool fits = url.empty() || url.starts_with("http://") || url.starts_with("https://");
  return fits ? "" : "http://... or https://..., where people reach the page";
}

void CheckpointsConfig::settle(const TomlTable& /*table*/) {
  for (std::string& root : roots) root = fs::path(root).lexically_normal().string();
}

void TlsConfig::settle(const TomlTable& table) const {
  const bool has_certificate = !files.certificate.empty();
  if (has_certificate && files.key.empty()) {
    table.refuse("certificate", "a certificate together with tls.key");
  }
  if (!has_certificate && !files.key.empty()) {
    table.refuse("key", "a key together with tls.certificate");
  }
  if (!has_certificate && !files.ca.empty()) {
    table.refuse("client_ca", "authorities of clients together with tls.certificate");
  }
  if (client_certificates == ClientCertificates::kOptional && files.ca.empty()) {
    table.refuse("client_certificates", "\"optional\" together with tls.client_ca");
  }
}

void DaemonConfig::settle(const TomlTable& table) {
  if (!TomlTable(table).table("auth").has("connections")) {
    auth.connections = std::max(int64_t{1}, limits.connections / 2);
  }
  notify::check_receivers(notifications.receivers, table);
}

static std::string read_config_file(const fs::path& file) {
  try {
    return read_named_file(file);
  } catch (const Error& error) {
    throw ConfigError("command line", 0, "--config", file.string(),
                      fmt::format("a file that can be read ({})", error.what()));
  }
}

DaemonConfig read_daemon_config(const fs::path& file) {
  DaemonConfig config;
  config.file = fs::absolute(file).string();
  try {
    TomlTable root = TomlTable::parse(read_config_file(file), file.string());
    read_settings(root, config);
  } catch (const ConfigError& error) {  // a receiver's URL may be a secret
    throw without_secrets(error);
  }
  return config;
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
    check_ledger_location(config.ledger);
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
  const std::vector<SettingRow> before = list_settings(running);
  const std::vector<SettingRow> after = list_settings(wanted);
  std::vector<std::string> keys;
  // Receivers, of which there may be other ones, come last and are always taken.
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    const Reload reload = before[i].setting.reload;
    const bool switched = (before[i].value == "\"\"") != (after[i].value == "\"\"");
    if ((reload == Reload::kRestart && before[i].value != after[i].value) ||
        (reload == Reload::kNotSwitched && switched)) {
      keys.push_back(before[i].path());
    }
  }
  return keys;
}

}  // namespace gnomon
