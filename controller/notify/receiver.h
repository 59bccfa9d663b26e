// Who is notified, of what, and how: a [[notify]] of the configuration.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "controller/notify/alert.h"
#include "protocol/settings.h"

namespace gnomon::notify {

// Every name that `kinds` may have, "*" first.
std::span<const std::string_view> kind_words();

// What would be accepted in place of such a text; empty when it is fine.
std::string receiver_name_error(std::string_view name);
std::string receiver_url_error(std::string_view url);
std::string run_glob_error(std::string_view glob);

struct Receiver {
  std::string name;
  std::string url;
  std::vector<std::string> kinds = {"*"};
  std::string minimum_severity = "info";
  std::vector<std::string> runs = {"*"};
  std::string secret_file;
  std::string authorization_file;
  std::string ca_file;
  double timeout_seconds = 10;
  double retry_first_seconds = 1;
  double retry_longest_seconds = 300;
  double give_up_hours = 72;

  // What the files hold.
  std::vector<std::string> secrets;  // one, or two while one replaces the other
  std::string authorization;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = Receiver;
    constexpr double kDay = 86'400;
    v("name", &S::name,
      Setting{.required = true,
              .check = receiver_name_error,
              .accepted = "letters, digits, `-`, `_`, `.`",
              .help = "Unique, at most 16. A label of metrics; messages wait under it."});
    v("url", &S::url,
      Setting{.required = true,
              .check = receiver_url_error,
              .accepted = "`http://…` or `https://…`, no user in it",
              .help = "The path may hold a token: it is never logged."});
    v("kinds", &S::kinds,
      Setting{.words = kind_words(),
              .accepted = "`*`, or kinds of the tables below",
              .help = "Kinds to send."});
    v("minimum_severity", &S::minimum_severity,
      Setting{.words = kSeverities, .help = "Lowest severity to send."});
    v("runs", &S::runs,
      Setting{.check = run_glob_error,
              .accepted = "globs (`*`, `?`) of NAME/JOB_ID or NAME",
              .help = "Runs to send."});
    v("secret_file", &S::secret_file,
      Setting{.file = true,
              .help = "[Signature](#the-signature) key on the first line; empty: no signature. Two "
                      "lines while keys change."});
    v("authorization_file", &S::authorization_file,
      Setting{.file = true, .help = "Value of `Authorization`, like `Bearer abc`."});
    v("ca_file", &S::ca_file,
      Setting{.file = true,
              .help = "PEM: the only trusted authorities, read for each connection; empty: the "
                      "system's (Debian: `/etc/ssl/certs`)."});
    v("timeout_seconds", &S::timeout_seconds,
      Setting{.range = {0.1, 300}, .help = "Longest time of a request; to connect at most 10."});
    v("retry_first_seconds", &S::retry_first_seconds,
      Setting{.range = {0.01, kDay},
              .help = "First wait after a failure. Waits double, with jitter."});
    v("retry_longest_seconds", &S::retry_longest_seconds,
      Setting{.range = {0.01, kDay},
              .accepted = "`retry_first_seconds` … 86400",
              .help = "Longest wait."});
    v("give_up_hours", &S::give_up_hours,
      Setting{.range = {0.0001, 10'000}, .help = "Older messages are dropped."});
  }
  // Reads what the files hold, too.
  void settle(const TomlTable& table);

  bool wants(const Alert& alert) const;
  bool operator==(const Receiver&) const = default;
};

// Throws ConfigError for two of one name among those of `root`, and for too many.
void check_receivers(const std::vector<Receiver>& receivers, const TomlTable& root);

}  // namespace gnomon::notify
