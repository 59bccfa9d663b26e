// Settings that people write in TOML: policies, and the configurations of programs. A struct of
// settings lists its keys once, in `describe`. Reading and writing TOML, what is accepted, errors
// and the tables of the documents come from that list.
//
//   struct Window {
//     int64_t every = 50;  // the default
//     template <class Visitor>
//     static void describe(Visitor&& v) {
//       v("every", &Window::every,
//         Setting{.range = {1, 1e9}, .unit = "steps", .help = "From one window to the next."});
//     }
//     void settle(const TomlTable& table);  // where keys depend on each other
//   };
//
// A visitor is called with the key, an accessor for std::invoke, and a Setting. A member is a bool,
// an int, an int64_t, a double, a text, an enum (in the order of the words), an optional one of
// these (absent is no value), a list of texts, another such struct (a [table]), or a list of them
// ([[table]]). settle() is called when all keys of a table were read: it gives a key that is absent
// the default that depends on others, and refuses what contradicts itself.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/errors.h"
#include "protocol/records/member.h"
#include "protocol/toml_reader.h"

namespace gnomon {

// What a program that runs does with another value when it reads its configuration again.
enum class Reload {
  kTaken,
  kNotSwitched,  // another one, but neither a first one nor none
  kRestart,
};

// What is known of a key besides its type and default.
struct Setting {
  bool required = false;                                   // no default
  Range range = {};                                        // of a number: finite
  std::span<const std::string_view> words = {};            // that texts may be; none: any
  std::string (*check)(std::string_view) = nullptr;        // what else a text should be; or empty
  size_t items_most = std::numeric_limits<size_t>::max();  // of a list
  bool file = false;               // a file's name, relative to the configuration's folder
  Reload reload = Reload::kTaken;  // of a daemon's
  const char* unit = "";           // of a number, where the key's name does not end with it
  const char* otherwise = "";      // the default in words, where it depends on something else
  const char* accepted = "";       // in words, where range and words do not say it
  const char* help = "";           // Markdown
};

// One key with its value.
struct SettingRow {
  std::string table;  // "window", "notify[0]"; empty for the document's own keys
  std::string key;
  Setting setting;
  std::string_view type;  // "true, false", "integer", "number", "text", "list"
  std::string value;      // in TOML; empty where there is none

  std::string path() const { return table.empty() ? key : table + "." + key; }
};

// The TOML of such rows, which parses to the same values.
std::string to_toml(const std::vector<SettingRow>& rows);
// Paths and values of the rows that are not what `others` has: "window.every = 100 (default 50)",
// where `word` is "default". With help, if asked for.
std::vector<std::string> changed_settings(const std::vector<SettingRow>& rows,
                                          const std::vector<SettingRow>& others,
                                          std::string_view word, bool with_help);
// A table in Markdown of the rows, whose values are the defaults. Links stay.
std::string settings_reference(const std::vector<SettingRow>& rows, bool with_reload);

struct IgnoresSettings {
  template <typename... Arguments>
  void operator()(Arguments&&... /*described*/) const {}
};
template <typename T>
concept DescribesSettings = requires {
  T::describe(IgnoresSettings{});
};

namespace settings {

template <typename T>
struct ItemOf {
  using Type = void;
};
template <typename T>
struct ItemOf<std::vector<T>> {
  using Type = T;
};

void read(TomlTable& table, const char* key, const Setting& setting, bool& to);
void read(TomlTable& table, const char* key, const Setting& setting, int& to);
void read(TomlTable& table, const char* key, const Setting& setting, int64_t& to);
void read(TomlTable& table, const char* key, const Setting& setting, double& to);
void read(TomlTable& table, const char* key, const Setting& setting, std::string& to);
void read(TomlTable& table, const char* key, const Setting& setting, std::vector<std::string>& to);
template <typename T>
requires std::is_enum_v<T>
void read(TomlTable& table, const char* key, const Setting& setting, T& to) {
  const std::string word = table.choice(key, setting.words[static_cast<size_t>(to)], setting.words);
  size_t place = 0;
  while (setting.words[place] != word) ++place;
  to = static_cast<T>(place);
}
template <typename T>
void read(TomlTable& table, const char* key, const Setting& setting, std::optional<T>& to) {
  T value{};
  if (!table.has(key)) {
    table.know(key);
  } else {
    read(table, key, setting, value);
    to = std::move(value);
  }
}

[[noreturn]] void refuse_missing(const TomlTable& table, const char* key, const Setting& setting);

std::string toml(bool value);
std::string toml(int64_t value);
std::string toml(double value);
std::string toml(const std::string& value);
std::string toml(const std::vector<std::string>& value);

template <typename T>
std::string_view type_of(const T* /*type*/) {
  if constexpr (std::is_same_v<T, bool>) return "true, false";
  if constexpr (std::is_integral_v<T>) return "integer";
  if constexpr (std::is_floating_point_v<T>) return "number";
  return std::is_same_v<T, std::vector<std::string>> ? "list" : "text";
}
template <typename T>
std::string_view type_of(const std::optional<T>* /*type*/) {
  return type_of(static_cast<const T*>(nullptr));
}
template <typename T>
std::string value_of(const T& value, const Setting& setting) {
  if constexpr (std::is_enum_v<T>) {
    return toml(std::string(setting.words[static_cast<size_t>(value)]));
  } else if constexpr (std::is_same_v<T, int>) {
    return toml(int64_t{value});
  } else {
    return toml(value);
  }
}
template <typename T>
std::string value_of(const std::optional<T>& value, const Setting& setting) {
  return value ? value_of(*value, setting) : std::string();
}

template <typename S>
void add_rows(const S& from, const std::string& table, std::vector<SettingRow>& rows) {
  S::describe([&](const char* key, auto access, const Setting& setting) {
    const auto& value = std::invoke(access, from);
    using T = std::remove_cvref_t<decltype(value)>;
    const std::string path = table.empty() ? key : table + "." + key;
    if constexpr (DescribesSettings<T>) {
      add_rows(value, path, rows);
    } else if constexpr (DescribesSettings<typename ItemOf<T>::Type>) {
      for (size_t i = 0; i < value.size(); ++i) {
        add_rows(value[i], path + "[" + std::to_string(i) + "]", rows);
      }
    } else {
      rows.push_back({table, key, setting, type_of(&value), value_of(value, setting)});
    }
  });
}

}  // namespace settings

// Reads all keys of a table. Those that are absent keep what `to` has. Throws one ConfigError with
// all that is wrong: types, values that are not accepted, unknown keys; and where there is none of
// these, unless that is left out, keys that are missing or what settle() refuses. Keys of
// S::kRetired, which earlier versions had, are left unread: ledgers hold them.
template <typename S>
void read_settings(TomlTable& table, S& to, bool settled = true) {
  std::vector<ConfigError> wrong;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const ConfigError& error) {
      wrong.push_back(error);
    }
  };
  S::describe([&](const char* key, auto access, const Setting& setting) {
    auto& value = std::invoke(access, to);
    using T = std::remove_cvref_t<decltype(value)>;
    using Item = typename settings::ItemOf<T>::Type;
    attempt([&] {
      if constexpr (DescribesSettings<T>) {
        TomlTable inner = table.table(key);
        read_settings(inner, value, settled);
      } else if constexpr (DescribesSettings<Item>) {
        for (TomlTable& inner : table.tables(key)) {
          attempt([&] { read_settings(inner, value.emplace_back(), settled); });
        }
      } else {
        settings::read(table, key, setting, value);
      }
    });
  });
  attempt([&] {
    if constexpr (requires { S::kRetired; }) {
      table.refuse_unknown_keys(S::kRetired);
    } else {
      table.refuse_unknown_keys();
    }
  });
  if (!wrong.empty()) throw ConfigError(wrong);
  if (!settled) return;
  S::describe([&](const char* key, auto&& /*access*/, const Setting& setting) {
    if (setting.required && !table.has(key)) settings::refuse_missing(table, key, setting);
  });
  if constexpr (requires { to.settle(table); }) to.settle(table);
}

// Every key with its value, tables after the document's own keys, as they are described.
template <typename S>
std::vector<SettingRow> list_settings(const S& from) {
  std::vector<SettingRow> rows;
  settings::add_rows(from, "", rows);
  return rows;
}

}  // namespace gnomon
