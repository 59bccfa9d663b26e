#include "storage/json_rows.h"

#include <SQLiteCpp/Column.h>
#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "protocol/records.h"

namespace gnomon {
namespace {

// Columns of that name hold JSON, in whatever table.
bool holds_json(std::string_view column) {
  static const std::set<std::string, std::less<>> names = [] {
    std::set<std::string, std::less<>> found;
#define GNOMON_TABLE(R)                                             \
  R::describe([&](const char* name, auto&&, const Member& member) { \
    if (*member.json != '\0') found.emplace(name);                  \
  });
    GNOMON_EACH_TABLE(GNOMON_TABLE)
#undef GNOMON_TABLE
    return found;
  }();
  return names.contains(column);
}

std::string real_as_json(double value) {
  if (std::isfinite(value)) {
    return fmt::format("{}", value);
  }
  return std::isnan(value) ? "null" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

std::string value_as_json(const SQLite::Column& column) {
  if (column.isNull()) {
    return "null";
  }
  if (column.isInteger()) {
    return fmt::format("{}", column.getInt64());
  }
  if (column.isFloat()) {
    return real_as_json(column.getDouble());
  }
  return holds_json(column.getName()) ? column.getString() : string_as_json(column.getString());
}

}  // namespace

std::string row_as_json(Query& query) {
  SQLite::Statement& statement = query.statement();
  std::string json = "{";
  for (int i = 0; i < statement.getColumnCount(); ++i) {
    json += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", statement.getColumnName(i),
                        value_as_json(statement.getColumn(i)));
  }
  json += '}';
  return json;
}

void append_element(std::string& array, const std::string& element) {
  if (array.size() > 1) {
    array += ',';
  }
  array += element;
}

std::string rows_as_json(Query& query) {
  std::string json = "[";
  while (query.next()) {
    append_element(json, row_as_json(query));
  }
  json += ']';
  return json;
}

std::string first_row_as_json(Query& query) { return query.next() ? row_as_json(query) : "null"; }

std::string string_as_json(const std::string& text) {
  return boost::json::serialize(boost::json::string(text));
}

}  // namespace gnomon
