#include "protocol/client_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/named_file.h"

namespace gnomon {
namespace {

constexpr size_t kTokenMax = 4096;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// What a header can carry without harm (RFC 6750 has fewer characters still).
bool is_token(const std::string& text) {
  return !text.empty() && text.size() <= kTokenMax &&
         std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

// A pipe (a shell's <(command)) can be read once, and a token is asked for with every connection.
std::string text_of(const std::string& file) {
  static std::mutex mutex;
  static std::map<std::string, std::string> of_pipes;
  std::error_code unseen;
  if (!std::filesystem::is_fifo(file, unseen)) return read_named_file(file);
  const std::lock_guard lock(mutex);
  auto found = of_pipes.find(file);
  if (found == of_pipes.end()) {
    found = of_pipes.emplace(file, read_named_file_or_pipe(file)).first;
  }
  return found->second;
}

}  // namespace

ClientOptions with_environment(ClientOptions options) {
  if (options.token.empty() && options.token_file.empty()) {
    options.token_file = variable("GNOMON_TOKEN_FILE");
    if (options.token_file.empty()) options.token = variable("GNOMON_TOKEN");
  }
  if (options.ca_file.empty()) options.ca_file = variable("GNOMON_CA_FILE");
  if (options.certificate_file.empty() && options.key_file.empty()) {
    options.certificate_file = variable("GNOMON_CERTIFICATE_FILE");
    options.key_file = variable("GNOMON_KEY_FILE");
  }
  return options;
}

std::string read_token(const ClientOptions& options) {
  const std::string accepted =
      fmt::format("a token: 1 to {} visible characters of ASCII without spaces", kTokenMax);
  if (options.token_file.empty()) {
    if (options.token.empty() || is_token(options.token)) return options.token;
    throw ConfigError("", 0, "token", "(not shown)", accepted);
  }
  std::string text;
  try {
    text = text_of(options.token_file);
  } catch (const Error& error) {
    throw ConfigError("", 0, "token_file", options.token_file,
                      fmt::format("a file that can be read ({})", error.what()));
  }
  std::string token = first_line(text);
  if (is_token(token)) return token;
  throw ConfigError("", 0, "token_file", options.token_file,
                    "a file whose first line is " + accepted);
}

ConfigError as_option(const ConfigError& error, const std::string& url_option) {
  if (error.key() == "controller") return {"", 0, url_option, error.value(), error.accepted()};
  if (error.key() == "token") return {"", 0, "GNOMON_TOKEN", error.value(), error.accepted()};
  if (!error.key().ends_with("_file")) return error;
  std::string option = "--" + error.key();
  std::ranges::replace(option, '_', '-');
  return {"", 0, option, error.value(), error.accepted()};
}

}  // namespace gnomon
