#include "trainer/config_controller.h"

#include "protocol/client.h"
#include "trainer/config.h"

namespace gnomon {
namespace {

// Where the file, the command line or the environment has what is wrong.
ConfigError located(const ConfigError& error, const TomlTable& table, bool url_of_command_line) {
  const bool is_url = error.key() == "controller";
  const std::string accepted = error.accepted() + (is_url ? " or \"none\"" : "");
  if (is_url && url_of_command_line) return {"", 0, "--controller", error.value(), accepted};
  const std::string key = is_url ? "url" : error.key();
  const bool of_file = is_url || table.has(key);
  return {table.file(), of_file ? table.line_of(key) : 0, "controller." + key, error.value(),
          accepted};
}

}  // namespace

ClientOptions controller_access(const ControllerTable& controller,
                                const std::optional<std::string>& url, const TomlTable& table) {
  ClientOptions options;
  options.url = url.value_or(controller.url);
  options.token_file = controller.token_file;
  options.ca_file = controller.ca_file;
  options.certificate_file = controller.certificate_file;
  options.key_file = controller.key_file;
  if (options.url == "none") return {};
  options = with_environment(std::move(options));
  try {
    const HttpClient check(options);
  } catch (const ConfigError& error) {
    throw located(error, table, url.has_value());
  }
  return options;
}

std::optional<OnLoss> on_loss_from_name(const std::string& name) {
  const auto words = std::span(kOnLossWords).last(3);
  const auto found = std::ranges::find(words, name);
  if (found == words.end()) return std::nullopt;
  return static_cast<OnLoss>(found - words.begin());
}

}  // namespace gnomon
