#include "storage/strict_json.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <set>
#include <vector>

#include "base/errors.h"

namespace gnomon {
namespace {

namespace json = boost::json;

// Listens to the parser and stops it at the first key that its object already has.
class DuplicateKeyHandler {
 public:
  static constexpr size_t max_object_size = SIZE_MAX;
  static constexpr size_t max_array_size = SIZE_MAX;
  static constexpr size_t max_key_size = SIZE_MAX;
  static constexpr size_t max_string_size = SIZE_MAX;

  const std::string& duplicate() const { return duplicate_; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code& error) {
    key_.append(part.data(), part.size());
    if (!keys_.back().insert(key_).second) {
      duplicate_ = key_;
      error = json::error::syntax;
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string key_;
  std::string duplicate_;
};

[[noreturn]] void wrong_member(std::string_view key, const JsonSource& source,
                               const std::string& found, const std::string& expected) {
  throw FormatError(source.file, source.offset_bytes, fmt::format("\"{}\" {}", key, found),
                    expected);
}

}  // namespace

json::value parse_strict_json(std::string_view text, const JsonSource& source,
                              const std::string& expected) {
  json::basic_parser<DuplicateKeyHandler> parser(json::parse_options{});
  json::error_code error;
  size_t parsed = parser.write_some(false, text.data(), text.size(), error);
  int64_t at = source.offset_bytes + static_cast<int64_t>(parsed);
  if (!parser.handler().duplicate().empty())
    throw FormatError(source.file, at,
                      fmt::format("the key \"{}\" twice", parser.handler().duplicate()), expected);
  if (error)
    throw FormatError(source.file, at, fmt::format("no valid JSON ({})", error.message()),
                      expected);
  if (parsed != text.size()) throw FormatError(source.file, at, "bytes behind the JSON", expected);
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error)
    throw FormatError(source.file, source.offset_bytes,
                      fmt::format("no valid JSON ({})", error.message()), expected);
  return value;
}

const json::value& json_member(const json::object& object, std::string_view key,
                               const JsonSource& source) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  if (value == nullptr)
    throw FormatError(source.file, source.offset_bytes, fmt::format("no member \"{}\"", key),
                      fmt::format("\"{}\"", key));
  return *value;
}

std::string json_string(const json::object& object, std::string_view key,
                        const JsonSource& source) {
  const json::value& value = json_member(object, key, source);
  if (!value.is_string()) wrong_member(key, source, "= " + json::serialize(value), "a string");
  return std::string(value.get_string().data(), value.get_string().size());
}

int64_t json_count(const json::object& object, std::string_view key, const JsonSource& source) {
  const json::value& value = json_member(object, key, source);
  int64_t count = json_as_count(value);
  if (count < 0)
    wrong_member(key, source, "= " + json::serialize(value), "an integer of 0 or more");
  return count;
}

const json::array& json_array(const json::object& object, std::string_view key,
                              const JsonSource& source) {
  const json::value& value = json_member(object, key, source);
  if (!value.is_array()) wrong_member(key, source, "is no array", "an array");
  return value.get_array();
}

int64_t json_as_count(const json::value& value) {
  if (const int64_t* number = value.if_int64(); number != nullptr && *number >= 0) return *number;
  return -1;
}

}  // namespace gnomon
