// What errors and logs may show of text that may hold secrets: the path of a webhook's URL often is
// one, and so is whatever stands in a file of tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"

namespace gnomon {

inline constexpr const char* kNotShown = "(not shown)";

// Scheme and host of an http or https URL, with or without quotes: "https://hooks.example/...".
// kNotShown for anything else, and for a URL with an @, before which a password may stand.
std::string url_in_short(std::string_view url);

// An error of a configuration with no more of a URL than url_in_short() shows, and without a URL
// that stands for a key, the value of an unknown key, lists, and what a syntax error quotes of the
// file.
ConfigError without_secrets(const ConfigError& error);

// An error of a file whose text is secret: where, which of `keys` it is about, and what would be
// accepted; nothing that stands there. Keys are those of TomlTable, like "token[0].name".
ConfigError without_text(const ConfigError& error, const std::vector<std::string>& keys);

}  // namespace gnomon
