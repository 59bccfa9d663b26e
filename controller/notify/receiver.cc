#include "controller/notify/receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/named_file.h"
#include "net/tls_context.h"
#include "protocol/site_glob.h"

namespace gnomon::notify {
namespace {

namespace fs = std::filesystem;

// Each has a queue, series of metrics and up to four connections (daemon/descriptors.h) of its own.
constexpr size_t kReceiversMax = 16;
constexpr size_t kNameMax = 64;
constexpr size_t kUrlMax = 2048;
constexpr size_t kFileMax = 4096;

bool plain_name(const std::string& name) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= kNameMax && std::ranges::all_of(name, fits);
}

// A name or password in it would be shown to whoever sees the configuration's errors and logs.
bool plain_url(const std::string& url) {
  const size_t scheme = url.starts_with("http://")    ? 7
                        : url.starts_with("https://") ? 8
                                                      : std::string::npos;
  if (scheme == std::string::npos || url.size() > kUrlMax) return false;
  const std::string authority = url.substr(scheme, url.find_first_of("/?#", scheme) - scheme);
  const auto visible = [](unsigned char c) { return c > ' ' && c < 0x7f; };
  return !authority.empty() && authority.front() != ':' &&
         authority.find('@') == std::string::npos && url.find('#') == std::string::npos &&
         std::ranges::all_of(url, visible);
}

class ReceiverReader {
 public:
  ReceiverReader(TomlTable& table, const fs::path& folder) : table_(table), folder_(folder) {}

  Receiver read() {
    r_.name = table_.text("name", "");
    if (!plain_name(r_.name)) {
      table_.refuse("name", "1 to 64 letters, digits, '-', '_' and '.'");
    }
    r_.url = table_.text("url", "");
    if (!plain_url(r_.url)) {
      table_.refuse("url",
                    "http://HOST... or https://HOST... without a user (authorization_file is for "
                    "that), at most 2048 characters");
    }
    r_.format = table_.choice("format", r_.format, {"webhook", "alertmanager"});
    std::vector<std::string> accepted = kind_names();
    accepted.emplace_back("*");
    r_.kinds = table_.choices("kinds", r_.kinds, accepted);
    r_.minimum_severity =
        table_.choice("minimum_severity", r_.minimum_severity, {"info", "warning", "critical"});
    read_runs();
    read_files();
    read_times();
    table_.refuse_unknown_keys();
    return std::move(r_);
  }

 private:
  void read_runs() {
    r_.runs = table_.texts("runs", r_.runs);
    for (const std::string& glob : r_.runs) {
      if (glob.empty() || glob.find_first_of("{}") != std::string::npos) {
        table_.refuse("runs", "globs of NAME or NAME/JOB_ID with * and ?");
      }
    }
  }

  // The lines of a file that are not empty.
  std::vector<std::string> lines_of(const char* key, const std::string& file, size_t most) {
    std::string text;
    try {
      text = read_named_file(file, kFileMax);
    } catch (const Error& error) {
      table_.refuse(key, fmt::format("a file that can be read ({})", error.what()));
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
      table_.refuse(key, fmt::format("a file of {} without control characters, at most 4096 bytes",
                                     most == 1 ? "one line" : "one or two lines"));
    }
    return lines;
  }

  void read_files() {
    r_.secret_file = path("secret_file");
    if (!r_.secret_file.empty()) r_.secrets = lines_of("secret_file", r_.secret_file, 2);
    r_.authorization_file = path("authorization_file");
    if (!r_.authorization_file.empty()) {
      r_.authorization = lines_of("authorization_file", r_.authorization_file, 1).front();
    }
    r_.ca_file = path("ca_file");
    if (r_.ca_file.empty()) return;
    try {
      read_client_tls({"", "", r_.ca_file});
    } catch (const TlsFileError& error) {
      table_.refuse("ca_file", fmt::format("{} ({})", error.accepted(), error.wrong()));
    }
  }

  void read_times() {
    constexpr double kDay = 86'400;
    r_.timeout_seconds = table_.number("timeout_seconds", r_.timeout_seconds, 0.1, 300);
    r_.retry_first_seconds =
        table_.number("retry_first_seconds", r_.retry_first_seconds, 0.01, kDay);
    r_.retry_longest_seconds =
        table_.number("retry_longest_seconds", r_.retry_longest_seconds, 0.01, kDay);
    if (r_.retry_longest_seconds < r_.retry_first_seconds) {
      table_.refuse("retry_longest_seconds",
                    fmt::format("at least retry_first_seconds ({})", r_.retry_first_seconds));
    }
    r_.give_up_hours = table_.number("give_up_hours", r_.give_up_hours, 0.0001, 10'000);
  }

  std::string path(const char* key) {
    const std::string name = table_.text(key, "");
    return name.empty() ? name : fs::absolute(folder_ / name).lexically_normal().string();
  }

  TomlTable& table_;
  const fs::path& folder_;
  Receiver r_;
};

Severity severity_named(const std::string& name) {
  return name == "critical"  ? Severity::kCritical
         : name == "warning" ? Severity::kWarning
                             : Severity::kInfo;
}

bool matches_any(const std::vector<std::string>& globs, const Alert& alert) {
  return std::ranges::any_of(globs, [&](const std::string& glob) {
    return simple_glob_matches(glob, alert.labels.at("run")) ||
           simple_glob_matches(glob, alert.labels.at("run_name"));
  });
}

}  // namespace

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  const auto add = [&](const auto& kinds) {
    for (const Kind& kind : kinds) names.emplace_back(kind.name);
  };
  add(kDecisionKinds);
  add(kMomentKinds);
  add(kConditionKinds);
  return names;
}

bool Receiver::wants(const Alert& alert) const {
  const bool kind = std::ranges::any_of(
      kinds, [&](const std::string& one) { return one == "*" || one == alert.kind; });
  return kind && alert.severity >= severity_named(minimum_severity) && matches_any(runs, alert);
}

std::vector<Receiver> read_receivers(TomlTable& root, const fs::path& folder) {
  std::vector<Receiver> receivers;
  std::set<std::string> names;
  for (TomlTable& table : root.tables("notify")) {
    receivers.push_back(ReceiverReader(table, folder).read());
    if (!names.insert(receivers.back().name).second) {
      table.refuse("name", "another name: each receiver has its own");
    }
    if (receivers.size() > kReceiversMax) {
      table.refuse("name", fmt::format("at most {} receivers", kReceiversMax));
    }
  }
  return receivers;
}

}  // namespace gnomon::notify
