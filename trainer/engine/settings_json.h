// The engine's settings as JSON, as checkpoints hold them, and whether they are within their
// ranges: over what each struct describes. Doubles are written so that they come back bit for bit.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <type_traits>

#include "base/errors.h"
#include "protocol/settings.h"
#include "trainer/engine/json_fields.h"

namespace gnomon {

template <typename S>
boost::json::object settings_to_json(const S& settings) {
  boost::json::object object;
  S::describe([&](const char* key, auto access, const Setting& setting) {
    const auto& value = std::invoke(access, settings);
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_enum_v<T>) {
      object.emplace(key, setting.words[static_cast<size_t>(value)]);
    } else if constexpr (std::is_same_v<T, double>) {
      object.emplace(key, exact_text(value));
    } else {
      object.emplace(key, value);
    }
  });
  return object;
}

// A key that is not there has its default, as in a run's file. Throws FormatError.
template <typename S>
S settings_from_json(const JsonFields& fields) {
  S settings;
  S::describe([&](const char* key, auto access, const Setting& setting) {
    if (fields.find(key) == nullptr) return;
    auto& value = std::invoke(access, settings);
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_enum_v<T>) {
      const auto word = std::ranges::find(setting.words, fields.text(key));
      if (word == setting.words.end()) {
        fields.refuse(key, fmt::format("one of \"{}\"", fmt::join(setting.words, "\", \"")));
      }
      value = static_cast<T>(word - setting.words.begin());
    } else if constexpr (std::is_same_v<T, bool>) {
      value = fields.boolean(key);
    } else if constexpr (std::is_same_v<T, int>) {
      value = fields.integer32(key);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      value = fields.integer(key);
    } else if constexpr (std::is_same_v<T, double>) {
      value = fields.exact(key);
    } else {
      value = fields.text(key);
    }
  });
  return settings;
}

// Throws ConfigError (`name` in place of a file, key, value, what is accepted).
inline void check_range(const std::string& name, const std::string& key, double value,
                        const Range& range) {
  if (value >= range.least && value <= range.most) return;
  throw ConfigError(name, 0, key, fmt::format("{}", value),
                    fmt::format("{} to {}", range.least, range.most));
}

// The same for every number of `settings`.
template <typename S>
void check_ranges(const std::string& name, const S& settings) {
  S::describe([&](const char* key, auto access, const Setting& setting) {
    const auto& value = std::invoke(access, settings);
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      check_range(name, key, static_cast<double>(value), setting.range);
    }
  });
}

}  // namespace gnomon
