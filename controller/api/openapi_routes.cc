#include "controller/api/openapi_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cctype>
#include <utility>

#include "controller/auth/roles.h"

namespace gnomon {
namespace {

namespace json = boost::json;

json::object reference(const char* kind, std::string_view name) {
  return {{"$ref", fmt::format("#/components/{}/{}", kind, name)}};
}

// A regular expression of the whole numbers from 0 to below `end`, which is above 0.
std::string whole_numbers_below(int64_t end) {
  const std::string last = fmt::format("{}", end - 1);
  const size_t digits = last.size();
  std::string pattern = last;
  if (digits > 1) pattern += "|[0-9]";
  if (digits > 2) pattern += fmt::format("|[1-9][0-9]{{1,{}}}", digits - 2);
  // Numbers as long as the last one, that are smaller from digit i on.
  for (size_t i = 0; i < digits; ++i) {
    const char least = i == 0 && digits > 1 ? '1' : '0';
    if (last[i] == least) continue;
    pattern += fmt::format("|{}[{}-{}]", last.substr(0, i), least, static_cast<char>(last[i] - 1));
    if (const size_t rest = digits - i - 1; rest > 0) pattern += fmt::format("[0-9]{{{}}}", rest);
  }
  return pattern;
}

json::object schema_of(const QueryParameter& parameter) {
  switch (parameter.kind) {
    case QueryParameter::Kind::kInteger: {
      json::object schema{{"type", "integer"},
                          {"format", "int64"},
                          {"minimum", parameter.min},
                          {"maximum", parameter.max}};
      if (parameter.absent) schema["default"] = *parameter.absent;
      return schema;
    }
    case QueryParameter::Kind::kSeconds:
      return {{"type", "string"},
              {"pattern", fmt::format(R"(^({})(\.[0-9]+)?s?$|^{}s?$)",
                                      whole_numbers_below(parameter.max), parameter.max)}};
    case QueryParameter::Kind::kText:
      return {{"type", "string"}, {"maxLength", parameter.max}};
    case QueryParameter::Kind::kChoice:
      return {{"type", "string"},
              {"enum", json::array(parameter.choices.begin(), parameter.choices.end())}};
    case QueryParameter::Kind::kPlace:
      return {{"type", "string"}, {"pattern", R"(^[0-9]{1,18}\.[0-9]{1,18}$)"}};
  }
  return {};
}

json::array parameters_of(const Route& route) {
  json::array parameters;
  for (size_t at = route.pattern.find('{'); at != std::string::npos;
       at = route.pattern.find('{', at + 1)) {
    const size_t end = route.pattern.find('}', at);
    parameters.emplace_back(reference("parameters", route.pattern.substr(at + 1, end - at - 1)));
  }
  for (const QueryParameter& each : route.parameters) {
    parameters.emplace_back(json::object{{"name", each.name},
                                         {"in", "query"},
                                         {"description", each.help},
                                         {"schema", schema_of(each)}});
  }
  return parameters;
}

bool changes_something(const Route& route) {
  return route.method != "GET" && route.access != Access::kRead;
}

void add_answers(json::object& answers, const Route& route) {
  const auto add = [&](const char* status, const char* answer) {
    if (!answers.contains(status)) answers[status] = reference("responses", answer);
  };
  add("400", "BadRequest");
  add("401", "Unauthenticated");
  add("403", "Forbidden");
  if (route.pattern.find('{') != std::string::npos) add("404", "NotFound");
  add("408", "Timeout");
  if (changes_something(route)) add("409", "Conflict");
  add("413", "TooLarge");
  if (route.body.kind != BodyKind::kNone) add("415", "UnsupportedMediaType");
  add("429", "TooMany");
  add("431", "HeaderTooLarge");
  add("500", "Failed");
  add("503", "Unavailable");
  if (changes_something(route)) add("507", "DiskFull");
  if (*route.rows == '\0') return;
  const auto limit = std::ranges::find(route.parameters, "limit", &QueryParameter::name);
  const json::object list{
      {"type", "array"}, {"maxItems", limit->max}, {"items", reference("schemas", route.rows)}};
  answers["200"] = {{"description", "Rows."},
                    {"headers", {{"Link", reference("headers", "next")}}},
                    {"content", {{"application/json", {{"schema", list}}}}}};
}

// The tokens that the operation takes, each an alternative.
json::array security_of(const Route& route) {
  json::array alternatives;
  if (route.access == Access::kOpen) return alternatives;
  for (const std::string& name : role_names()) {
    if (may(*role_from_name(name), route.access))
      alternatives.emplace_back(json::object{{"token", json::array{name}}});
  }
  return alternatives;
}

void add_route(json::object& operation, const Route& route) {
  operation["x-access"] = access_name(route.access);
  operation["security"] = security_of(route);
  if (json::array parameters = parameters_of(route); !parameters.empty()) {
    json::value& there = operation["parameters"];
    if (!there.is_array()) there.emplace_array();
    for (json::value& each : parameters) there.get_array().push_back(std::move(each));
  }
  if (route.body.kind != BodyKind::kNone) operation["x-body-max"] = route.body.max;
  if (*route.body.record != '\0') {
    const json::object content{{"schema", reference("schemas", route.body.record)}};
    operation["requestBody"] = {{"required", true}, {"content", {{"application/json", content}}}};
  }
  json::value& answers = operation["responses"];
  if (!answers.is_object()) answers.emplace_object();
  add_answers(answers.get_object(), route);
}

}  // namespace

void add_routes(json::object& document, const std::vector<Route>& routes) {
  json::object& paths = document.at("paths").as_object();
  for (const Route& route : routes) {
    std::string method = route.method;
    std::ranges::transform(method, method.begin(), [](char c) { return std::tolower(c); });
    json::value* path = paths.if_contains(route.pattern);
    json::value* operation = path ? path->as_object().if_contains(method) : nullptr;
    if (operation != nullptr) add_route(operation->as_object(), route);
  }
}

}  // namespace gnomon
