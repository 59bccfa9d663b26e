#include "protocol/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace gnomon {
namespace settings {
namespace {

// A bound as a whole number; more than 64 bits hold is the most that they hold.
int64_t whole(double bound, int64_t least, int64_t most) {
  if (bound <= static_cast<double>(least)) return least;
  return bound >= static_cast<double>(most) ? most : static_cast<int64_t>(bound);
}

template <typename T>
T read_whole(TomlTable& table, const char* key, const Range& range, T fallback) {
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(table.integer(key, fallback,
                                      whole(range.least, Limits::min(), Limits::max()),
                                      whole(range.most, Limits::min(), Limits::max())));
}

}  // namespace

void read(TomlTable& table, const char* key, const Setting& /*setting*/, bool& to) {
  to = table.boolean(key, to);
}
void read(TomlTable& table, const char* key, const Setting& setting, int& to) {
  to = read_whole(table, key, setting.range, to);
}
void read(TomlTable& table, const char* key, const Setting& setting, int64_t& to) {
  to = read_whole(table, key, setting.range, to);
}
void read(TomlTable& table, const char* key, const Setting& setting, double& to) {
  to = table.number(key, to, setting.range.least, setting.range.most);
}

void read(TomlTable& table, const char* key, const Setting& setting, std::string& to) {
  to = setting.words.empty() ? table.text(key, to) : table.choice(key, to, setting.words);
  if (setting.check != nullptr) {
    if (const std::string accepted = setting.check(to); !accepted.empty()) {
      table.refuse(key, accepted);
    }
  }
  if (setting.file && !to.empty()) {
    const std::filesystem::path folder = std::filesystem::path(table.file()).parent_path();
    to = std::filesystem::absolute(folder / to).lexically_normal().string();
  }
}

void read(TomlTable& table, const char* key, const Setting& setting, std::vector<std::string>& to) {
  to = setting.words.empty() ? table.texts(key, to) : table.choices(key, to, setting.words);
  if (to.size() > setting.items_most) {
    table.refuse(key, fmt::format("at most {} of them", setting.items_most));
  }
  for (const std::string& text : to) {
    const std::string accepted = setting.check == nullptr ? "" : setting.check(text);
    if (!accepted.empty()) table.refuse(key, accepted);
  }
}

void refuse_missing(const TomlTable& table, const char* key, const Setting& setting) {
  table.refuse(key, setting.words.empty()
                        ? fmt::format("this key, which has no default: {}", setting.help)
                        : fmt::format("one of \"{}\"", fmt::join(setting.words, "\", \"")));
}

std::string toml(bool value) { return value ? "true" : "false"; }
std::string toml(int64_t value) { return fmt::format("{}", value); }
// TOML tells 1 and 1.0 apart. Our reader accepts both, that of others may not.
std::string toml(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}
std::string toml(const std::string& value) { return toml_quoted(value); }
std::string toml(const std::vector<std::string>& value) {
  std::vector<std::string> quoted;
  quoted.reserve(value.size());
  for (const std::string& text : value) quoted.push_back(toml_quoted(text));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

}  // namespace settings

namespace {

// "10⁹" and "2⁴⁰" for large or small powers.
std::string readable(double number) {
  for (const int base : {10, 2}) {
    const double exponent = std::round(std::log(number) / std::log(base));
    if (!(number > 0) || (number >= 1e-3 && number < 65536)) break;
    if (std::pow(base, exponent) != number) continue;
    std::string text = fmt::format("{}", base);
    for (const char digit : fmt::format("{}", exponent)) {
      constexpr const char* kRaised[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
      text += digit == '-' ? "⁻" : kRaised[digit - '0'];
    }
    return text;
  }
  return fmt::format("{}", number);
}

std::string accepted_in_words(const SettingRow& row) {
  const Setting& setting = row.setting;
  if (*setting.accepted != '\0') return setting.accepted;
  if (!setting.words.empty()) return fmt::format("`{}`", fmt::join(setting.words, "`, `"));
  if (row.type == "text") return setting.file ? "a file" : "";
  if (row.type != "integer" && row.type != "number") return std::string(row.type);
  const bool has_most = setting.range.most < (row.type == "integer" ? 9e18 : 1e300);
  return has_most ? readable(setting.range.least) + " … " + readable(setting.range.most)
                  : "at least " + readable(setting.range.least);
}

std::string with_unit(const SettingRow& row, const std::string& value) {
  return *row.setting.unit == '\0' ? value : value + " " + row.setting.unit;
}

// "1000" for 1000.0, as people read it.
std::string default_in_words(const SettingRow& row) {
  if (row.setting.required) return "must be given";
  std::string value = row.value == "\"\"" ? "" : row.value;
  if (row.type == "number" && value.ends_with(".0")) value.resize(value.size() - 2);
  if (row.type == "text" || row.type == "list") value = value.empty() ? "" : "`" + value + "`";
  if (!value.empty()) value = with_unit(row, value);
  const std::string otherwise = row.setting.otherwise;
  if (otherwise.empty()) return value;
  return value.empty() ? otherwise : fmt::format("{} ({})", value, otherwise);
}

// A terminal shows no links: of "[text](target)" the text stays.
std::string without_links(std::string_view markdown) {
  std::string text;
  while (!markdown.empty()) {
    const size_t end = markdown.find("](");
    const size_t begin = markdown.substr(0, end).rfind('[');
    if (end == std::string_view::npos || begin == std::string_view::npos) break;
    text += std::string(markdown.substr(0, begin));
    text += std::string(markdown.substr(begin + 1, end - begin - 1));
    markdown.remove_prefix(std::min(markdown.find(')', end), markdown.size() - 1) + 1);
  }
  return text + std::string(markdown);
}

}  // namespace

std::string to_toml(const std::vector<SettingRow>& rows) {
  std::string text;
  std::string table;
  for (const SettingRow& row : rows) {
    if (row.table != table) {
      table = row.table;
      const size_t bracket = table.find('[');
      text += bracket == std::string::npos ? fmt::format("\n[{}]\n", table)
                                           : fmt::format("\n[[{}]]\n", table.substr(0, bracket));
    }
    if (!row.value.empty()) text += fmt::format("{} = {}\n", row.key, row.value);
  }
  return text;
}

std::vector<std::string> changed_settings(const std::vector<SettingRow>& rows,
                                          const std::vector<SettingRow>& others,
                                          std::string_view word, bool with_help) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(rows.size(), others.size()); ++i) {
    if (rows[i].value == others[i].value) continue;
    lines.push_back(fmt::format("{} = {} ({} {}){}", rows[i].path(),
                                with_unit(rows[i], rows[i].value), word, others[i].value,
                                with_help ? ": " + without_links(rows[i].setting.help) : ""));
  }
  return lines;
}

std::string settings_reference(const std::vector<SettingRow>& rows, bool with_reload) {
  std::string text = with_reload ? "| key | default | accepted | meaning | reload |\n"
                                   "|---|---|---|---|---|\n"
                                 : "| key | default | accepted | meaning |\n|---|---|---|---|\n";
  for (const SettingRow& row : rows) {
    text += fmt::format("| `{}` | {} | {} | {} |", row.path(), default_in_words(row),
                        accepted_in_words(row), row.setting.help);
    if (with_reload) {
      const Reload reload = row.setting.reload;
      text += reload == Reload::kTaken     ? " yes |"
              : reload == Reload::kRestart ? " no |"
                                           : " not from or to empty |";
    }
    text += '\n';
  }
  return text;
}

}  // namespace gnomon
