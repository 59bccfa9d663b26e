#include "cli/json_output.h"

#include <fmt/format.h>

#include <cmath>

#include "base/printable.h"

namespace gnomon::cli {
namespace {

bool is_flat(const boost::json::value& value) {
  auto leaf = [](const boost::json::value& item) { return !item.is_array() && !item.is_object(); };
  if (!value.is_array()) return false;
  for (const boost::json::value& item : value.get_array()) {
    if (!leaf(item)) return false;
  }
  return true;
}

// Shortest digits that read back as the same double, always recognisable as a real number ("-0.0",
// "448.0").
std::string real_number(double value) {
  if (!std::isfinite(value)) return boost::json::serialize(json_number(value));
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

void write_leaf(const boost::json::value& value, std::string& out) {
  if (value.is_double()) {
    out += real_number(value.get_double());
  } else if (value.is_array()) {
    const char* separator = "";
    out += '[';
    for (const boost::json::value& item : value.get_array()) {
      out += separator;
      write_leaf(item, out);
      separator = ", ";
    }
    out += ']';
  } else {
    out += boost::json::serialize(value);
  }
}

void write(const boost::json::value& value, std::string& out, const std::string& indent) {
  std::string inner = indent + "  ";
  if (value.is_object() && !value.get_object().empty()) {
    out += "{\n";
    const char* separator = "";
    for (const auto& [key, item] : value.get_object()) {
      out += separator + inner + boost::json::serialize(key) + ": ";
      write(item, out, inner);
      separator = ",\n";
    }
    out += "\n" + indent + "}";
  } else if (value.is_array() && !is_flat(value)) {
    out += "[\n";
    const char* separator = "";
    for (const boost::json::value& item : value.get_array()) {
      out += separator + inner;
      write(item, out, inner);
      separator = ",\n";
    }
    out += "\n" + indent + "]";
  } else {
    write_leaf(value, out);
  }
}

}  // namespace

boost::json::value json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::string pretty_json(const boost::json::value& value) {
  std::string out;
  write(value, out, "");
  return printable_json(out) + "\n";
}

}  // namespace gnomon::cli
