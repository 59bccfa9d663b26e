#include "trainer/engine/json_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "base/errors.h"

namespace gnomon {

namespace json = boost::json;

json::value parse_json(const std::string& text, const std::string& file) {
  json::stream_parser parser;
  json::error_code error;
  size_t used = parser.write_some(text, error);
  if (!error && text.find_first_not_of(" \t\r\n", used) != std::string::npos) {
    error = json::error::extra_data;
  }
  if (!error) parser.finish(error);
  if (error) {
    throw FormatError(file, static_cast<long long>(used), error.message(), "one JSON value");
  }
  return parser.release();
}

std::string exact_text(double value) { return fmt::format("{}", value); }

JsonFields::JsonFields(const json::value& value, std::string file)
    : object_(value.if_object()), file_(std::move(file)) {
  if (object_ == nullptr) throw FormatError(file_, 0, "another JSON value", "an object");
}

const json::value* JsonFields::find(const std::string& key) const {
  return object_->if_contains(key);
}

void JsonFields::refuse(const std::string& key, const std::string& expected) const {
  const json::value* found = find(key);
  std::string value = found == nullptr ? "nothing" : json::serialize(*found).substr(0, 80);
  throw FormatError(file_, 0, fmt::format("\"{}\": {}", key, value), expected);
}

const json::value& JsonFields::at(const std::string& key) const {
  const json::value* found = find(key);
  if (found == nullptr) refuse(key, "this field");
  return *found;
}

std::string JsonFields::text(const std::string& key) const {
  const json::value& value = at(key);
  if (!value.is_string()) refuse(key, "a string");
  return std::string(value.get_string());
}

int64_t JsonFields::integer(const std::string& key) const {
  const json::value& value = at(key);
  if (!value.is_int64()) refuse(key, "a whole number");
  return value.get_int64();
}

int JsonFields::integer32(const std::string& key) const {
  int64_t value = integer(key);
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    refuse(key, "a whole number of 32 bits");
  }
  return static_cast<int>(value);
}

bool JsonFields::boolean(const std::string& key) const {
  const json::value& value = at(key);
  if (!value.is_bool()) refuse(key, "true or false");
  return value.get_bool();
}

double JsonFields::exact(const std::string& key) const {
  std::string digits = text(key);
  double value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    refuse(key, "a string holding a decimal number");
  }
  return value;
}

double JsonFields::number_or(const std::string& key, double otherwise) const {
  const json::value* value = find(key);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_number()) refuse(key, "a number");
  return value->to_number<double>();
}

bool JsonFields::boolean_or(const std::string& key, bool otherwise) const {
  return find(key) == nullptr ? otherwise : boolean(key);
}

}  // namespace gnomon
