// Typed reading of TOML written by people: every mistake becomes a ConfigError with file, line,
// key, value and what would be accepted. Unknown keys are mistakes too. Used for precision plans
// and program configurations.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// A TOML basic string, quotes included.
std::string toml_quoted(std::string_view text);

// One table of a document. Copies are cheap and share the document. Each getter remembers its key,
// which must live as long, as known; refuse_unknown_keys() at the end refuses the others.
class TomlTable {
 public:
  // Parses a whole document. Throws ConfigError with the line of a syntax error. `file` is for
  // messages.
  static TomlTable parse(std::string_view text, const std::string& file);

  // "model" for [model], "" for the document itself.
  const std::string& path() const { return path_; }
  const std::string& file() const { return file_; }
  int line() const;  // where the table begins, 1-based
  int line_of(
      std::string_view key) const;  // of the key's value; the table's own when the key is absent
  bool has(std::string_view key) const;

  // The value of `key`, or `fallback` when absent. Throws ConfigError for a wrong type or a value
  // out of range.
  int64_t integer(std::string_view key, int64_t fallback, int64_t min, int64_t max);
  double number(std::string_view key, double fallback, double min, double max);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  // As text(), but the value must be one of `accepted`.
  std::string choice(std::string_view key, std::string_view fallback,
                     std::span<const std::string_view> accepted);
  // An array of such values, in the order of the file.
  std::vector<std::string> choices(std::string_view key, const std::vector<std::string>& fallback,
                                   std::span<const std::string_view> accepted);

  // An array of any strings.
  std::vector<std::string> texts(std::string_view key, const std::vector<std::string>& fallback);

  // Sub-tables: an empty one when absent. `tables` reads [[key]].
  TomlTable table(std::string_view key);
  std::vector<TomlTable> tables(std::string_view key);

  // Counts `key` as known.
  void know(std::string_view key);
  // Throws ConfigError naming the keys that no getter asked for, with the known ones. Keys that
  // earlier versions had may stay.
  void refuse_unknown_keys(std::span<const std::string_view> retired = {}) const;
  // A ConfigError about `key` of this table, for checks that need more than a type and a range.
  [[noreturn]] void refuse(std::string_view key, const std::string& accepted) const;

 private:
  struct Document;
  TomlTable() = default;
  std::string full_key(std::string_view key) const;
  std::string shown_value(std::string_view key) const;
  std::string hint(const std::string& key) const;
  const void* node(std::string_view key);

  std::shared_ptr<Document> document_;
  const void* table_ = nullptr;  // toml::table; nullptr = absent
  std::string path_;
  std::string file_;
  int parent_line_ = 0;
  std::vector<std::string_view> known_;
};

}  // namespace gnomon
