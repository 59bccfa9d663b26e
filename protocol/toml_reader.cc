#include "protocol/toml_reader.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "base/errors.h"
#include "base/suggestion.h"

namespace gnomon {
namespace {

const toml::table* as_table(const void* pointer) {
  return static_cast<const toml::table*>(pointer);
}

int line_number(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

std::string show(const toml::node& node) {
  if (const auto* text = node.as_string()) return fmt::format("\"{}\"", text->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  std::ostringstream out;
  if (const auto* table = node.as_table())
    return fmt::format("a table of {} key{}", table->size(), table->size() == 1 ? "" : "s");
  if (const auto* array = node.as_array()) {
    out << *array;
  } else {
    node.visit([&out](const auto& value) {
      if constexpr (toml::is_value<decltype(value)>) out << value;
    });
  }
  return out.str();
}

constexpr int kDepthMax = 32;

// Walks over TOML text without understanding it: strings and comments are skipped, brackets and the
// dots of keys are counted.
class NestingScanner {
 public:
  explicit NestingScanner(std::string_view text) : text_(text) {}

  // The line on which more than kDepthMax levels are open; 0 when there is none.
  int line_too_deep() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      count(c);
      if (brackets_ + dots_ > kDepthMax) return line_;
      ++at_;
    }
    return 0;
  }

 private:
  void count(char c) {
    if (c == '\n') ++line_;
    if (c == '[' || c == '{') ++brackets_;
    if (c == ']' || c == '}') --brackets_;
    if (c == '.') ++dots_;
    if (c == '\n' || c == ',' || c == '=') dots_ = 0;
  }

  void skip_string(char quote) {
    const bool multi_line = text_.substr(at_, 3) == std::string(3, quote);
    const std::string end(multi_line ? 3 : 1, quote);
    at_ += end.size();
    while (at_ < text_.size() && text_.substr(at_, end.size()) != end) {
      if (text_[at_] == '\n') {
        if (!multi_line) return;
        ++line_;
      }
      at_ += quote == '"' && text_[at_] == '\\' ? 2 : 1;
    }
    at_ += end.size();
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int brackets_ = 0;
  int dots_ = 0;
};

}  // namespace

struct TomlTable::Document {
  toml::table root;
  std::map<std::string, std::string, std::less<>> table_of;  // of each key that a table knows
};

TomlTable TomlTable::parse(std::string_view text, const std::string& file) {
  // The parser and its tables' destructors call themselves once for each level.
  if (const int line = NestingScanner(text).line_too_deep(); line > 0) {
    throw ConfigError(file, line, "nesting", fmt::format("more than {} levels", kDepthMax),
                      fmt::format("at most {} levels of tables and arrays", kDepthMax));
  }
  auto document = std::make_shared<Document>();
  try {
    document->root = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw ConfigError(file, static_cast<int>(error.source().begin.line), ConfigError::kSyntax,
                      std::string(error.description()), "TOML 1.0");
  }
  TomlTable table;
  table.table_ = &document->root;
  table.document_ = std::move(document);
  table.file_ = file;
  return table;
}

int TomlTable::line() const {
  return table_ == nullptr ? parent_line_ : line_number(*as_table(table_));
}

int TomlTable::line_of(std::string_view key) const {
  if (table_ != nullptr) {
    if (const toml::node* found = as_table(table_)->get(key)) return line_number(*found);
  }
  return line();
}

bool TomlTable::has(std::string_view key) const {
  return table_ != nullptr && as_table(table_)->contains(key);
}

std::string TomlTable::full_key(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::string TomlTable::shown_value(std::string_view key) const {
  return has(key) ? show(*as_table(table_)->get(key)) : std::string();
}

void TomlTable::know(std::string_view key) {
  known_.push_back(key);
  if (path_.empty()) return;
  const bool one_of_several = path_.back() == ']';
  document_->table_of.emplace(key, one_of_several
                                       ? fmt::format("[[{}]]", path_.substr(0, path_.rfind('[')))
                                       : fmt::format("[{}]", path_));
}

// What a key that is not known here may have been meant to be.
std::string TomlTable::hint(const std::string& key) const {
  const std::string meant = did_you_mean(key, {known_.begin(), known_.end()});
  const auto elsewhere = document_->table_of.find(key);
  if (!meant.empty() || elsewhere == document_->table_of.end()) return meant;
  return fmt::format("; {} is a key of {}", key, elsewhere->second);
}

const void* TomlTable::node(std::string_view key) {
  know(key);
  return table_ == nullptr ? nullptr : as_table(table_)->get(key);
}

void TomlTable::refuse(std::string_view key, const std::string& accepted) const {
  throw ConfigError(file_, line_of(key), full_key(key), shown_value(key), accepted);
}

int64_t TomlTable::integer(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return fallback;
  const auto* value = found->as_integer();
  if (value == nullptr || value->get() < min || value->get() > max) {
    refuse(key, max == std::numeric_limits<int64_t>::max()
                    ? fmt::format("an integer, at least {}", min)
                    : fmt::format("an integer from {} to {}", min, max));
  }
  return value->get();
}

double TomlTable::number(std::string_view key, double fallback, double min, double max) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return fallback;
  const auto value = found->is_number() ? found->value<double>() : std::nullopt;
  if (!value || !(*value >= min) || !(*value <= max)) {
    refuse(key, fmt::format("a number from {} to {}", min, max));
  }
  return *value;
}

bool TomlTable::boolean(std::string_view key, bool fallback) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return fallback;
  if (!found->is_boolean()) refuse(key, "true or false");
  return found->as_boolean()->get();
}

std::string TomlTable::text(std::string_view key, const std::string& fallback) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return fallback;
  if (!found->is_string()) refuse(key, "a string in quotes");
  return found->as_string()->get();
}

std::string TomlTable::choice(std::string_view key, std::string_view fallback,
                              std::span<const std::string_view> accepted) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return std::string(fallback);
  const auto value = found->is_string() ? found->value<std::string>() : std::nullopt;
  if (!value || std::find(accepted.begin(), accepted.end(), *value) == accepted.end()) {
    refuse(key, fmt::format("one of \"{}\"", fmt::join(accepted, "\", \"")));
  }
  return *value;
}

TomlTable TomlTable::table(std::string_view key) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found != nullptr && !found->is_table()) refuse(key, fmt::format("a section [{}]", key));
  TomlTable result;
  result.document_ = document_;
  result.table_ = found == nullptr ? nullptr : found->as_table();
  result.path_ = full_key(key);
  result.file_ = file_;
  result.parent_line_ = line();
  return result;
}

std::vector<std::string> TomlTable::choices(std::string_view key,
                                            const std::vector<std::string>& fallback,
                                            std::span<const std::string_view> accepted) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return fallback;
  const std::string wanted = fmt::format("an array of \"{}\"", fmt::join(accepted, "\", \""));
  const auto* array = found->as_array();
  if (array == nullptr) refuse(key, wanted);
  std::vector<std::string> result;
  for (const toml::node& item : *array) {
    const auto value = item.value_exact<std::string>();
    if (!value || std::find(accepted.begin(), accepted.end(), *value) == accepted.end()) {
      refuse(key, wanted);
    }
    result.push_back(*value);
  }
  return result;
}

std::vector<std::string> TomlTable::texts(std::string_view key,
                                          const std::vector<std::string>& fallback) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return fallback;
  const auto* array = found->as_array();
  if (array == nullptr) refuse(key, "an array of strings");
  std::vector<std::string> result;
  for (const toml::node& item : *array) {
    const auto value = item.value_exact<std::string>();
    if (!value) refuse(key, "an array of strings");
    result.push_back(*value);
  }
  return result;
}

std::vector<TomlTable> TomlTable::tables(std::string_view key) {
  const auto* found = static_cast<const toml::node*>(node(key));
  if (found == nullptr) return {};
  const auto* array = found->as_array();
  if (array == nullptr) refuse(key, fmt::format("sections [[{}]]", key));
  std::vector<TomlTable> result;
  for (size_t i = 0; i < array->size(); ++i) {
    if (!array->get(i)->is_table()) refuse(key, fmt::format("sections [[{}]]", key));
    TomlTable item;
    item.document_ = document_;
    item.table_ = array->get(i)->as_table();
    item.path_ = fmt::format("{}[{}]", full_key(key), i);
    item.file_ = file_;
    result.push_back(std::move(item));
  }
  return result;
}

void TomlTable::refuse_unknown_keys(std::span<const std::string_view> retired) const {
  if (table_ == nullptr) return;
  std::vector<ConfigError> unknown;
  for (const auto& [name, value] : *as_table(table_)) {
    const std::string_view key = name.str();
    if (std::ranges::find(retired, key) != retired.end()) continue;
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      unknown.emplace_back(
          file_, line_number(value), full_key(key), show(value),
          fmt::format("one of the keys {}{}", fmt::join(known_, ", "), hint(std::string(key))));
    }
  }
  if (!unknown.empty()) throw ConfigError(unknown);
}

std::string toml_quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      result += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace gnomon
