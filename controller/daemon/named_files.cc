#include "controller/daemon/named_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>

#include "base/file_access.h"
#include "base/files.h"
#include "controller/auth/tokens.h"
#include "controller/decide/policy.h"

namespace gnomon {
namespace {

// "3 tokens (1 admin, 2 reader), 1 of them over".
std::string tokens_in_words(const std::vector<Token>& tokens, double now) {
  std::string roles;
  for (const std::string& role : role_names()) {
    const auto count = std::ranges::count_if(
        tokens, [&](const Token& token) { return role_name(token.role) == role; });
    if (count > 0) roles += fmt::format("{}{} {}", roles.empty() ? "" : ", ", count, role);
  }
  const auto over = std::ranges::count_if(
      tokens, [now](const Token& token) { return token.expires > 0 && token.expires <= now; });
  std::string words = fmt::format("{} token{}", tokens.size(), tokens.size() == 1 ? "" : "s");
  if (!roles.empty()) words += fmt::format(" ({})", roles);
  if (over > 0) words += fmt::format(", {} of them over", over);
  return words;
}

void describe_tls(const DaemonConfig& config, double now, std::vector<std::string>& lines) {
  const TlsFiles& files = config.tls.files;
  if (files.certificate.empty()) return;
  const double ends = load_tls(config).expires_at;
  lines.push_back(fmt::format("tls.certificate {}: valid until {}, for {:.0f} more days",
                              files.certificate, utc_text(ends), std::floor((ends - now) / 86400)));
  lines.push_back(fmt::format("tls.key {}: the certificate's", files.key));
  if (files.ca.empty()) return;
  const bool required = config.tls.client_certificates == ClientCertificates::kRequired;
  lines.push_back(
      fmt::format("tls.client_ca {}: authorities of clients, {}", files.ca,
                  required ? "who must have a certificate" : "who may do without a certificate"));
}

void describe_receiver(const notify::Receiver& receiver, std::vector<std::string>& lines) {
  const auto add = [&](const char* key, const std::string& file, const std::string& found) {
    if (file.empty()) return;
    lines.push_back(fmt::format("{} of the receiver {} {}: {}", key, receiver.name, file, found));
  };
  add("secret_file", receiver.secret_file,
      receiver.secrets.size() == 1 ? "a key" : "a key and the one before");
  add("authorization_file", receiver.authorization_file, "a header's value");
  add("ca_file", receiver.ca_file, "authorities");
}

// What everybody may do with a file: bits of its mode; 0 for one that is not there.
mode_t for_everybody(const std::string& file) {
  struct stat status {};
  if (file.empty() || ::stat(file.c_str(), &status) != 0) return 0;
  return status.st_mode & (S_IROTH | S_IWOTH);
}

}  // namespace

std::vector<std::string> describe_named_files(const DaemonConfig& config, double now) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "ledger {}: {}", config.ledger,
      is_file_at(config.ledger) ? "there (not looked into)" : "not there, will be made"));
  if (!config.policy.empty()) {
    const auto policy = decide::Policy::parse(read_default_policy(config), config.policy);
    lines.push_back(
        fmt::format("policy {}: mode {}", config.policy, decide::mode_name(policy.mode)));
  }
  if (!config.auth.tokens.empty()) {
    lines.push_back(fmt::format("auth.tokens {}: {}", config.auth.tokens,
                                tokens_in_words(read_tokens(config.auth.tokens), now)));
  }
  describe_tls(config, now, lines);
  if (!config.web_root.empty()) lines.push_back(fmt::format("web_root {}: there", config.web_root));
  if (!config.backup.folder.empty()) {
    lines.push_back(fmt::format("backup.folder {}: there", config.backup.folder));
  }
  for (const auto& receiver : config.notifications.receivers) describe_receiver(receiver, lines);
  return lines;
}

std::vector<std::string> doubtful_files(const DaemonConfig& config) {
  std::vector<std::string> sentences;
  const auto look = [&](const std::string& key, const std::string& file, bool secret) {
    const mode_t mode = for_everybody(file);
    if ((mode & S_IWOTH) != 0) {
      sentences.push_back(
          fmt::format("{} {}: everybody on this machine may write it, and so decide who may do "
                      "what; chmod o-w takes that away",
                      key, file));
    }
    if (secret && (mode & S_IROTH) != 0) {
      sentences.push_back(fmt::format(
          "{} {}: everybody on this machine may read this secret; chmod o-r takes that away", key,
          file));
    }
  };
  look("the configuration", config.file, false);
  look("auth.tokens", config.auth.tokens, false);
  look("policy", config.policy, false);
  look("tls.certificate", config.tls.files.certificate, false);
  look("tls.key", config.tls.files.key, true);
  look("tls.client_ca", config.tls.files.ca, false);
  for (const notify::Receiver& receiver : config.notifications.receivers) {
    const std::string of = fmt::format(" of the receiver {}", receiver.name);
    look("secret_file" + of, receiver.secret_file, true);
    look("authorization_file" + of, receiver.authorization_file, true);
  }
  if (const std::string& folder = config.backup.folder; !folder.empty()) {
    if (const std::string why = why_not_writable(folder); !why.empty()) {
      sentences.push_back(
          fmt::format("backup.folder: {}, so no backup can be made; is its disk mounted for "
                      "writing, and has the "
                      "service ReadWritePaths= for it?",
                      why));
    }
  }
  return sentences;
}

}  // namespace gnomon
