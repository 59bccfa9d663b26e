#include "controller/notify/receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/named_file.h"
#include "protocol/site_glob.h"
#include "protocol/tls_context.h"

namespace gnomon::notify {
namespace {

// Each has a queue, series of metrics and up to four connections (daemon/descriptors.h) of its own.
constexpr size_t kReceiversMax = 16;
constexpr size_t kNameMax = 64;
constexpr size_t kUrlMax = 2048;
constexpr size_t kFileMax = 4096;

// The lines of a file that are not empty.
std::vector<std::string> lines_of(const TomlTable& table, const char* key, const std::string& file,
                                  size_t most) {
  std::string text;
  try {
    text = read_named_file(file, kFileMax);
  } catch (const Error& error) {
    table.refuse(key, fmt::format("a file that can be read ({})", error.what()));
  }
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  const auto control = [](unsigned char c) { return c < ' '; };
  const bool fits = std::ranges::none_of(
      lines, [&](const std::string& line) { return std::ranges::any_of(line, control); });
  if (lines.empty() || lines.size() > most || !fits) {
    table.refuse(key, fmt::format("a file of {} without control characters, at most 4096 bytes",
                                  most == 1 ? "one line" : "one or two lines"));
  }
  return lines;
}

bool matches_any(const std::vector<std::string>& globs, const Alert& alert) {
  return std::ranges::any_of(globs, [&](const std::string& glob) {
    return simple_glob_matches(glob, alert.labels.at("run")) ||
           simple_glob_matches(glob, alert.labels.at("run_name"));
  });
}

}  // namespace

std::span<const std::string_view> kind_words() {
  static const std::vector<std::string_view> words = [] {
    std::vector<std::string_view> names = {"*"};
    const auto add = [&](const auto& kinds) {
      for (const Kind& kind : kinds) names.push_back(kind.name);
    };
    add(kDecisionKinds);
    add(kMomentKinds);
    add(kConditionKinds);
    return names;
  }();
  return words;
}

std::string receiver_name_error(std::string_view name) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  const bool plain = !name.empty() && name.size() <= kNameMax && std::ranges::all_of(name, fits);
  return plain ? "" : "1 to 64 letters, digits, '-', '_' and '.'";
}

// A name or password in it would be shown to whoever sees the configuration's errors and logs.
std::string receiver_url_error(std::string_view url) {
  const size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  const std::string_view authority = url.substr(scheme, url.find_first_of("/?#", scheme) - scheme);
  const auto visible = [](unsigned char c) { return c > ' ' && c < 0x7f; };
  const bool plain = scheme > 0 && url.size() <= kUrlMax && !authority.empty() &&
                     authority.front() != ':' && authority.find('@') == std::string::npos &&
                     url.find('#') == std::string::npos && std::ranges::all_of(url, visible);
  return plain ? ""
               : "http://HOST... or https://HOST... without a user (authorization_file is for "
                 "that), at most 2048 characters";
}

std::string run_glob_error(std::string_view glob) {
  const bool plain = !glob.empty() && glob.find_first_of("{}") == std::string::npos;
  return plain ? "" : "globs of NAME or NAME/JOB_ID with * and ?";
}

void Receiver::settle(const TomlTable& table) {
  if (!secret_file.empty()) secrets = lines_of(table, "secret_file", secret_file, 2);
  if (!authorization_file.empty()) {
    authorization = lines_of(table, "authorization_file", authorization_file, 1).front();
  }
  if (retry_longest_seconds < retry_first_seconds) {
    table.refuse("retry_longest_seconds",
                 fmt::format("at least retry_first_seconds ({})", retry_first_seconds));
  }
  if (ca_file.empty()) return;
  try {
    read_client_tls({"", "", ca_file});
  } catch (const TlsFileError& error) {
    table.refuse("ca_file", fmt::format("{} ({})", error.accepted(), error.wrong()));
  }
}

bool Receiver::wants(const Alert& alert) const {
  const auto least =
      static_cast<Severity>(std::ranges::find(kSeverities, minimum_severity) - kSeverities.begin());
  const bool kind = std::ranges::any_of(
      kinds, [&](const std::string& one) { return one == "*" || one == alert.kind; });
  return kind && least <= alert.severity && matches_any(runs, alert);
}

void check_receivers(const std::vector<Receiver>& receivers, const TomlTable& root) {
  std::set<std::string> names;
  std::vector<TomlTable> tables = TomlTable(root).tables("notify");
  for (size_t i = 0; i < receivers.size(); ++i) {
    if (!names.insert(receivers[i].name).second) {
      tables[i].refuse("name", "another name: each receiver has its own");
    }
    if (i >= kReceiversMax) {
      tables[i].refuse("name", fmt::format("at most {} receivers", kReceiversMax));
    }
  }
}

}  // namespace gnomon::notify
