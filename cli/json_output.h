// JSON as the operator's command prints it: what JSON cannot write is a string ("NaN", "Infinity",
// "-Infinity").
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>

namespace gnomon::cli {

boost::json::value json_number(double value);

template <typename T>
boost::json::value json_optional(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_floating_point_v<T>) {
    return json_number(*value);
  } else {
    return boost::json::value(*value);
  }
}

// With two spaces of indentation and a newline at the end; printable, as text of others may be in
// it.
std::string pretty_json(const boost::json::value& value);

}  // namespace gnomon::cli
