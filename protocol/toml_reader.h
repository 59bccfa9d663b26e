// Typed reading of TOML written by people: every mistake becomes a ConfigError with file, line,
// key, value and what would be accepted. Unknown keys are mistakes too. Used for precision plans
// and program configurations.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// A TOML basic string, quotes included.
std::string toml_quoted(std::string_view text);

// One table of a document. Copies are cheap and share the document. Each getter remembers its key
// as known; refuse_unknown_keys() at the end refuses the others.
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
      const std::string& key) const;  // of the key's value; the table's own when the key is absent
  bool has(const std::string& key) const;

  // The value of `key`, or `fallback` when absent. Throws ConfigError for a wrong type or a value
  // out of range.
  int64_t integer(const std::string& key, int64_t fallback, int64_t min, int64_t max);
  double number(const std::string& key, double fallback, double min, double max);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  // As text(), but the value must be one of `accepted`.
  std::string choice(const std::string& key, const std::string& fallback,
                     const std::vector<std::string>& accepted);
  // An array of such values, in the order of the file.
  std::vector<std::string> choices(const std::string& key, const std::vector<std::string>& fallback,
                                   const std::vector<std::string>& accepted);

  // An array of any strings.
  std::vector<std::string> texts(const std::string& key, const std::vector<std::string>& fallback);

  // Sub-tables: an empty one when absent. `tables` reads [[key]].
  TomlTable table(const std::string& key);
  std::vector<TomlTable> tables(const std::string& key);

  // Throws ConfigError naming the first key that no getter asked for, with the known ones.
  void refuse_unknown_keys() const;
  // A ConfigError about `key` of this table, for checks that need more than a type and a range.
  [[noreturn]] void refuse(const std::string& key, const std::string& accepted) const;

 private:
  struct Document;
  TomlTable() = default;
  std::string full_key(const std::string& key) const;
  std::string shown_value(const std::string& key) const;
  const void* node(const std::string& key);

  std::shared_ptr<const Document> document_;
  const void* table_ = nullptr;  // toml::table; nullptr = absent
  std::string path_;
  std::string file_;
  int parent_line_ = 0;
  std::vector<std::string> known_;
};

}  // namespace gnomon
