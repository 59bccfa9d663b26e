#include "controller/api/openapi_schemas.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "controller/api/openapi_document.h"
#include "controller/api/openapi_routes.h"
#include "protocol/records.h"

namespace gnomon {
namespace {

namespace json = boost::json;

json::object reference(const char* schema) {
  return {{"$ref", fmt::format("#/components/schemas/{}", schema)}};
}

json::value bound(double value) {
  constexpr double kWhole = 1e15;
  if (value == std::floor(value) && std::abs(value) <= kWhole) return static_cast<int64_t>(value);
  return value;
}

void add_range(json::object& schema, const Range& range) {
  if (range.least > Range{}.least) schema["minimum"] = bound(range.least);
  if (range.most < Range{}.most) schema["maximum"] = bound(range.most);
}

json::object text_schema(const Member& member) {
  json::object schema{{"type", "string"}};
  const Text& rule = member.text;
  if (rule.form == Text::Form::kHash) {
    schema["pattern"] = fmt::format("^[!-~]{{{},{}}}$", rule.least, rule.most);
    return schema;
  }
  if (rule.least > 0) schema["minLength"] = rule.least;
  if (rule.most < rules::kAnyText.most) schema["maxLength"] = rule.most;
  if (rule.form == Text::Form::kLine) {
    schema["pattern"] = R"(^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$)";
  }
  return schema;
}

template <const auto& list>
json::object word_schema() {
  json::array words;
  for (const std::string_view word : list) words.emplace_back(word);
  return {{"type", "string"}, {"enum", std::move(words)}};
}

template <typename T>
struct SchemaOf {
  static json::object get(const Member& /*member*/) { return reference(T::kRecord.name); }
};
template <>
struct SchemaOf<Labels> {
  static json::object get(const Member& /*member*/) { return reference("Labels"); }
};
template <>
struct SchemaOf<std::string> {
  static json::object get(const Member& member) { return text_schema(member); }
};
template <const auto& list>
struct SchemaOf<Word<list>> {
  static json::object get(const Member& /*member*/) { return word_schema<list>(); }
};
template <>
struct SchemaOf<bool> {
  static json::object get(const Member& /*member*/) { return {{"type", "boolean"}}; }
};
template <>
struct SchemaOf<double> {
  static json::object get(const Member& member) {
    const Range& range = member.range;
    if (range.nan || range.infinity || range.minus_infinity) return reference("Number");
    json::object schema{{"type", "number"}};
    add_range(schema, range);
    return schema;
  }
};
template <typename T>
requires std::is_integral_v<T>
struct SchemaOf<T> {
  static json::object get(const Member& member) {
    json::object schema{{"type", "integer"}, {"format", sizeof(T) == 8 ? "int64" : "int32"}};
    add_range(schema, member.range);
    return schema;
  }
};
template <typename T>
struct SchemaOf<std::optional<T>> : SchemaOf<T> {};
template <typename T>
struct SchemaOf<std::vector<T>> {
  static json::object get(const Member& member) {
    json::object schema{{"type", "array"}, {"items", SchemaOf<T>::get(member)}};
    if (member.items_most < Member{}.items_most) schema["maxItems"] = member.items_most;
    return schema;
  }
};

// Adds what `to` does not have.
void merge(json::object& to, json::object from) {
  for (auto& [key, value] : from) {
    json::value* known = to.if_contains(key);
    if (known == nullptr) {
      to[key] = std::move(value);
    } else if (known->is_object() && value.is_object()) {
      merge(known->get_object(), std::move(value.get_object()));
    }
  }
}

template <typename R>
json::object record_schema() {
  json::object schema{{"type", "object"}};
  if (*R::kRecord.help != '\0') schema["description"] = R::kRecord.help;
  json::object properties;
  json::array required;
  R::describe([&](const char* name, auto access, const Member& member) {
    using T = std::remove_cvref_t<std::invoke_result_t<decltype(access), R&>>;
    json::object property = SchemaOf<T>::get(member);
    if (*member.help != '\0') property["description"] = member.help;
    properties[name] = std::move(property);
    if (member.required) required.emplace_back(name);
  });
  if (!required.empty()) schema["required"] = std::move(required);
  schema["properties"] = std::move(properties);
  // A problem document may carry extension members (RFC 9457, section 3.2).
  if (!std::is_same_v<R, Problem>) schema["additionalProperties"] = false;
  return schema;
}

// The schema of a column, which may be NULL where `nothing` says so.
json::object column_schema(bool nothing, json::object schema) {
  if (!nothing) return schema;
  if (schema.contains("$ref") || schema.contains("enum"))
    return {{"oneOf", json::array{std::move(schema), json::object{{"type", "null"}}}}};
  schema["type"] = json::array{schema.at("type"), "null"};
  return schema;
}

template <typename T>
struct ColumnOf {
  static json::object get(const Member& member) {
    return column_schema(member.null, plain(member));
  }
  static json::object plain(const Member& /*member*/) {
    if constexpr (std::is_same_v<T, bool>)
      return {{"type", "integer"}, {"enum", json::array{0, 1}}};
    else if constexpr (std::is_integral_v<T>)
      return {{"type", "integer"}, {"format", "int64"}};
    else
      return {{"type", "array"}, {"items", json::object{{"type", "string"}}}};
  }
};
template <>
struct ColumnOf<double> {
  static json::object get(const Member& member) {
    return reference(member.range.nan || member.null ? "RowNumberOrNull" : "RowNumber");
  }
};
template <>
struct ColumnOf<std::string> {
  static json::object get(const Member& member) {
    return column_schema(member.null, plain(member));
  }
  static json::object plain(const Member& member) {
    const std::string_view holds = member.json;
    if (holds == "object") return {{"type", "object"}};
    if (!holds.empty()) return reference(member.json);
    return {{"type", "string"}};
  }
};
template <const auto& list>
struct ColumnOf<Word<list>> {
  static json::object get(const Member& member) {
    return column_schema(member.null, word_schema<list>());
  }
};
template <typename T>
struct ColumnOf<std::optional<T>> {
  static json::object get(Member member) {
    member.null = true;
    return ColumnOf<T>::get(member);
  }
};

template <typename R>
json::object row_schema() {
  json::object properties;
  json::array required;
  R::describe([&](const char* name, auto access, const Member& member) {
    using T = std::remove_cvref_t<std::invoke_result_t<decltype(access), R&>>;
    json::object property = ColumnOf<T>::get(member);
    if (*member.help != '\0') property["description"] = member.help;
    properties[name] = std::move(property);
    required.emplace_back(name);
  });
  return {{"type", "object"},
          {"additionalProperties", false},
          {"required", std::move(required)},
          {"properties", std::move(properties)}};
}

}  // namespace

void add_record_schemas(json::object& schemas) {
  const auto add = [&](const char* name, json::object schema) {
    json::value& there = schemas[name];
    if (!there.is_object()) there.emplace_object();
    merge(there.get_object(), std::move(schema));
  };
#define GNOMON_RECORD(R) add(R::kRecord.name, record_schema<R>());
  GNOMON_EACH_RECORD(GNOMON_RECORD)
#undef GNOMON_RECORD
#define GNOMON_ROW(R) add(R::kRow.name, row_schema<R>());
  GNOMON_EACH_SHOWN_ROW(GNOMON_ROW)
#undef GNOMON_ROW
}

std::string openapi_document(const std::vector<Route>& routes) {
  json::value document = json::parse(json::string_view(kOpenapiSource));
  add_record_schemas(document.at("components").at("schemas").get_object());
  add_routes(document.get_object(), routes);
  return json::serialize(document);
}

}  // namespace gnomon
