#include "protocol/json_text.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>

#include "protocol/json.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using json::error_code;
using json::string_view;

// What basic_parser calls. Numbers arrive as text in parts besides Boost's own reading of them.
struct Handler {
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();

  json::value_stack stack;
  std::string number;
  std::size_t members = 0;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return true; }
  bool on_object_end(std::size_t n, error_code&) {
    members += n;
    stack.push_object(n);
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t n, error_code&) {
    stack.push_array(n);
    return true;
  }
  bool on_key_part(string_view s, std::size_t, error_code&) {
    stack.push_chars(s);
    return true;
  }
  bool on_key(string_view s, std::size_t, error_code&) {
    stack.push_key(s);
    return true;
  }
  bool on_string_part(string_view s, std::size_t, error_code&) {
    stack.push_chars(s);
    return true;
  }
  bool on_string(string_view s, std::size_t, error_code&) {
    stack.push_string(s);
    return true;
  }
  bool on_number_part(string_view s, error_code&) {
    number.append(s.data(), s.size());
    return true;
  }
  bool on_int64(std::int64_t value, string_view, error_code&) {
    number.clear();
    stack.push_int64(value);
    return true;
  }
  bool on_uint64(std::uint64_t value, string_view, error_code&) {
    number.clear();
    stack.push_uint64(value);
    return true;
  }
  bool on_double(double, string_view s, error_code& ec) {
    number.append(s.data(), s.size());
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool whole = error == std::errc() && end == number.data() + number.size();
    // Out of range: smaller than the smallest double reads as what Boost would give, larger is
    // refused.
    if (!whole && error != std::errc::result_out_of_range) ec = json::error::syntax;
    if (error == std::errc::result_out_of_range) ec = json::error::exponent_overflow;
    number.clear();
    if (ec) return false;
    stack.push_double(value);
    return true;
  }
  bool on_bool(bool value, error_code&) {
    stack.push_bool(value);
    return true;
  }
  bool on_null(error_code&) {
    stack.push_null();
    return true;
  }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }
};

std::size_t count_members(const json::value& value) {
  std::size_t count = 0;
  if (const auto* object = value.if_object()) {
    count = object->size();
    for (const auto& member : *object) count += count_members(member.value());
  } else if (const auto* array = value.if_array()) {
    for (const json::value& item : *array) count += count_members(item);
  }
  return count;
}

}  // namespace

json::value parse_json_exactly(std::string_view text, json::storage_ptr memory) {
  json::basic_parser<Handler> parser{json::parse_options{}};
  Handler& handler = parser.handler();
  handler.stack.reset(std::move(memory));
  error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (ec || used != text.size()) {
    throw JsonError("",
                    fmt::format("{} at byte {}", ec ? ec.message() : "text after the end", used),
                    "one JSON value");
  }
  json::value value = handler.stack.release();
  if (count_members(value) != handler.members) {
    throw JsonError("", "an object that has a member twice", "each member once");
  }
  return value;
}

}  // namespace gnomon
