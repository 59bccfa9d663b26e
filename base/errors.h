// The one small family of exceptions for what a user, a file or a peer can get wrong. Each says
// what was wrong, with which value, and what would be accepted. What only we can get wrong is a
// GNOMON_ASSERT.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// Base of all errors that a caller may want to show to a person. what() is a full sentence.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A configuration, policy, plan or command line that cannot be accepted. Programs end with
// status 2.
class ConfigError : public Error {
 public:
  static constexpr const char* kSyntax = "syntax";  // the key of text that is no TOML at all
  // `line` is 1-based, 0 when the value has no line (a command line flag, say).
  ConfigError(std::string file, int line, std::string key, std::string value, std::string accepted);
  // All of these, which are not none, by their lines: a line each in what(), the rest is that of
  // the first.
  explicit ConfigError(const std::vector<ConfigError>& all);
  // What such an error is made of, in single errors; empty for a single one.
  const std::vector<ConfigError>& parts() const;
  const std::string& file() const { return file_; }
  int line() const { return line_; }
  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }
  const std::string& accepted() const { return accepted_; }

 private:
  ConfigError(std::vector<ConfigError> parts, const std::string& what);

  std::string file_;
  int line_;
  std::string key_;
  std::string value_;
  std::string accepted_;
  std::shared_ptr<const std::vector<ConfigError>> parts_;
};

// A file whose content is not what its format promises (truncated, foreign, corrupt). Names the
// file, the byte offset and what was expected there.
class FormatError : public Error {
 public:
  FormatError(std::string file, long long offset_bytes, std::string found, std::string expected);
  const std::string& file() const { return file_; }
  long long offset_bytes() const { return offset_bytes_; }

 private:
  std::string file_;
  long long offset_bytes_;
};

// The operating system refused (disk full, permission, missing file). Carries errno.
class SystemError : public Error {
 public:
  SystemError(std::string_view action, std::string_view path, int error_number);
  int error_number() const { return error_number_; }
  // There is no room, or no more is allowed: it may pass.
  bool disk_full() const;

 private:
  int error_number_;
};

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace gnomon

// Holds in every build type: a violated assertion means our own bug, so stop before harm is done.
#define GNOMON_ASSERT(condition) \
  ((condition) ? void(0) : ::gnomon::assertion_failed(#condition, __FILE__, __LINE__))
