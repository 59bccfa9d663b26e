#include "trainer/config_controller.h"

#include "base/redaction.h"
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

void refuse_unknown_controller_keys(const TomlTable& table) {
  try {
    table.refuse_unknown_keys();
  } catch (const ConfigError& error) {
    throw without_secrets(error);
  }
}

ClientOptions read_controller_access(TomlTable& table, const std::optional<std::string>& url,
                                     const std::filesystem::path& folder) {
  const auto path = [&](const char* key) {
    const std::string name = table.text(key, "");
    return name.empty() ? name
                        : std::filesystem::absolute(folder / name).lexically_normal().string();
  };
  ClientOptions options;
  options.url = table.text("url", "none");
  if (url) options.url = *url;
  options.token_file = path("token_file");
  options.ca_file = path("ca_file");
  options.certificate_file = path("certificate_file");
  options.key_file = path("key_file");
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
  if (name == "continue") return OnLoss::kContinue;
  if (name == "bf16") return OnLoss::kBf16;
  if (name == "pause") return OnLoss::kPause;
  return std::nullopt;
}

}  // namespace gnomon
