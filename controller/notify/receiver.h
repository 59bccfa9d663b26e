// Who is told, of what, and how: a [[notify]] of the configuration.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "controller/notify/alert.h"
#include "protocol/toml_reader.h"

namespace gnomon::notify {

struct Receiver {
  std::string name;
  std::string url;
  std::string format = "webhook";  // or alertmanager
  std::vector<std::string> kinds = {"*"};
  std::string minimum_severity = "info";  // info, warning, critical
  std::vector<std::string> runs = {"*"};  // globs of NAME/JOB_ID or NAME
  std::string secret_file;                // empty: nothing is signed
  std::string authorization_file;
  std::string ca_file;  // PEM; empty: the system's
  double timeout_seconds = 10;
  double retry_first_seconds = 1;
  double retry_longest_seconds = 300;
  double give_up_hours = 72;

  // What the files hold.
  std::vector<std::string> secrets;  // one, or two while one replaces the other
  std::string authorization;

  bool wants(const Alert& alert) const;
  bool operator==(const Receiver&) const = default;
};

// Every name that `kinds` may have, "*" aside.
std::vector<std::string> kind_names();

// Reads [[notify]]; relative file names are relative to `folder`. Reads secrets and authorizations
// too. Throws ConfigError with the line.
std::vector<Receiver> read_receivers(TomlTable& root, const std::filesystem::path& folder);

}  // namespace gnomon::notify
