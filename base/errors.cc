#include "base/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gnomon {
namespace {

std::string config_message(const std::string& file, int line, const std::string& key,
                           const std::string& value, const std::string& accepted) {
  std::string where = file;
  if (line > 0) where += fmt::format(":{}", line);
  std::string what = where.empty() ? std::string() : where + ": ";
  if (key == ConfigError::kSyntax) return what + fmt::format("this is no {}: {}", accepted, value);
  what += key;
  if (!value.empty()) what += fmt::format(" = {}", value);
  return what + fmt::format(": not accepted; expected {}", accepted);
}

// Single errors, by their lines.
std::vector<ConfigError> singles(const std::vector<ConfigError>& all) {
  std::vector<ConfigError> parts;
  for (const ConfigError& each : all) {
    if (each.parts().empty()) parts.push_back(each);
    parts.insert(parts.end(), each.parts().begin(), each.parts().end());
  }
  std::ranges::stable_sort(parts, {}, &ConfigError::line);
  return parts;
}

std::string all_messages(const std::vector<ConfigError>& all) {
  std::string lines;
  for (const ConfigError& each : singles(all))
    lines += (lines.empty() ? "" : "\n") + std::string(each.what());
  return lines;
}

}  // namespace

ConfigError::ConfigError(std::string file, int line, std::string key, std::string value,
                         std::string accepted)
    : Error(config_message(file, line, key, value, accepted)),
      file_(std::move(file)),
      line_(line),
      key_(std::move(key)),
      value_(std::move(value)),
      accepted_(std::move(accepted)) {}

ConfigError::ConfigError(const std::vector<ConfigError>& all)
    : ConfigError(singles(all), all_messages(all)) {}

ConfigError::ConfigError(std::vector<ConfigError> parts, const std::string& what)
    : Error(what),
      file_(parts.front().file_),
      line_(parts.front().line_),
      key_(parts.front().key_),
      value_(parts.front().value_),
      accepted_(parts.front().accepted_) {
  if (parts.size() > 1) parts_ = std::make_shared<const std::vector<ConfigError>>(std::move(parts));
}

const std::vector<ConfigError>& ConfigError::parts() const {
  static const std::vector<ConfigError> kNone;
  return parts_ == nullptr ? kNone : *parts_;
}

FormatError::FormatError(std::string file, long long offset_bytes, std::string found,
                         std::string expected)
    : Error(fmt::format("{}: at byte {}: found {}, expected {}", file, offset_bytes, found,
                        expected)),
      file_(std::move(file)),
      offset_bytes_(offset_bytes) {}

SystemError::SystemError(std::string_view action, std::string_view path, int error_number)
    : Error(fmt::format("cannot {} {}: {}", action, path, std::strerror(error_number))),
      error_number_(error_number) {}

bool SystemError::disk_full() const {
  return error_number_ == ENOSPC || error_number_ == EDQUOT || error_number_ == EFBIG;
}

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace gnomon
