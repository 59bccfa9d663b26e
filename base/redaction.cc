#include "base/redaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace gnomon {
namespace {

std::string_view without_quotes(std::string_view text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// "expected '=', saw 'x'" stays; of what is longer only the quotes do, from the first of them to
// the last, since the text between may have quotes of its own.
std::string without_quoted_text(std::string_view text) {
  constexpr auto kNone = std::string_view::npos;
  std::string out;
  size_t open = text.find('\'');
  while (open != kNone && text.find('\'', open + 1) == open + 2) {
    out += text.substr(0, open + 3);
    text.remove_prefix(open + 3);
    open = text.find('\'');
  }
  if (open == kNone) return out + std::string(text);
  const size_t close = text.rfind('\'');
  return fmt::format("{}{}'...'{}", out, text.substr(0, open),
                     close == open ? "" : text.substr(close + 1));
}

std::string last_key(const std::string& key) { return key.substr(key.rfind('.') + 1); }

ConfigError with_value(const ConfigError& error, std::string value) {
  return {error.file(), error.line(), error.key(), std::move(value), error.accepted()};
}

// Each part by itself, where there are several.
template <class Redact>
ConfigError of_parts(const ConfigError& error, const Redact& redact) {
  if (error.parts().empty()) return redact(error);
  std::vector<ConfigError> parts;
  for (const ConfigError& part : error.parts()) parts.push_back(redact(part));
  return ConfigError(parts);
}

ConfigError part_without_secrets(const ConfigError& error) {
  if (error.key() == ConfigError::kSyntax)
    return with_value(error, without_quoted_text(error.value()));
  const std::string& value = error.value();
  if (error.key().find("://") != std::string::npos) {  // a URL where a key belongs
    return {error.file(), error.line(), kNotShown, kNotShown, error.accepted()};
  }
  // TomlTable's words for a key that it does not know: nobody knows whether its value is a secret.
  // Nor what a list or a table is to say where another thing belongs.
  const bool is_unknown = error.accepted().starts_with("one of the keys ");
  const bool is_list = value.starts_with('[') && !error.accepted().starts_with("an array ");
  if (is_unknown || is_list) return with_value(error, kNotShown);
  const bool is_url = last_key(error.key()).ends_with("url") && !value.empty();
  const bool has_url = value.find("://") != std::string::npos;
  return is_url || has_url ? with_value(error, url_in_short(value)) : error;
}

}  // namespace

std::string url_in_short(std::string_view url) {
  url = without_quotes(url);
  const size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  if (scheme == 0 || url.find('@') != std::string_view::npos) return kNotShown;
  const auto end =
      std::find_if(url.begin() + static_cast<ptrdiff_t>(scheme), url.end(), [](unsigned char c) {
        return std::isalnum(c) == 0 && c != '.' && c != '-' && c != '_' && c != '[';
      });
  return fmt::format("\"{}{}\"", std::string(url.begin(), end), end == url.end() ? "" : "/...");
}

ConfigError without_secrets(const ConfigError& error) {
  return of_parts(error, part_without_secrets);
}

ConfigError without_text(const ConfigError& error, const std::vector<std::string>& keys) {
  return of_parts(error, [&](const ConfigError& part) {
    const bool syntax = part.key() == ConfigError::kSyntax;
    const bool known = syntax || std::ranges::find(keys, last_key(part.key())) != keys.end();
    return ConfigError(part.file(), part.line(), known ? part.key() : "an unknown key",
                       syntax || !known || part.value().empty() ? "" : kNotShown, part.accepted());
  });
}

}  // namespace gnomon
