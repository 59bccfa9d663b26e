// The routes of the daemon and the operations of the document of its API are the same set, with the
// same bodies, limits and query parameters. A route without an operation fails here, and so does an
// operation without a route.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>

#include "controller/api/services.h"
#include "tests/controller/openapi_document.h"
#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using test::openapi;
using test::resolved;
using test::text_at;

// What the routes are made of; nothing of it is asked.
struct Parts {
  test::TemporaryDirectory folder;
  Metrics metrics;
  Bells bells;
  Supervisor supervisor{metrics, bells, {}, [] { return 0.0; }, [] { return 0.0; }};
  Leases leases{supervisor, metrics, bells};
  Ledger ledger{{.file = folder / "ledger.sqlite",
                 .queue_max = 16,
                 .readers = 1,
                 .on_commit = {},
                 .on_outcome = {}}};
  Guard guard{{}, [] { return 0.0; }, [] { return 0.0; }};
  Services services{ledger, supervisor, leases, metrics, bells, guard, ""};
};

class OpenApiRoutesTest : public ::testing::Test {
 protected:
  OpenApiRoutesTest() : routes(all_routes(parts.services)) {
    routes.push_back(page_route(parts.services));
    for (const auto& [path, item] : openapi().at("paths").as_object()) {
      for (const auto& [key, operation] : item.as_object()) {
        if (key == "parameters") continue;
        std::string method = key;
        std::ranges::transform(method, method.begin(), [](char c) { return std::toupper(c); });
        operations[fmt::format("{} {}", method, std::string(path))] = &operation.as_object();
      }
    }
  }
  static std::string name_of(const Route& route) {
    return fmt::format("{} {}", route.method, route.pattern);
  }
  // The operation of a route, or an empty one.
  const json::object& operation(const Route& route) const {
    static const json::object nothing;
    const auto found = operations.find(name_of(route));
    return found == operations.end() ? nothing : *found->second;
  }

  Parts parts;
  std::vector<Route> routes;
  std::map<std::string, const json::object*> operations;
};

TEST_F(OpenApiRoutesTest, EveryRouteHasAnOperationAndEveryOperationARoute) {
  std::set<std::string> of_routes;
  std::set<std::string> of_document;
  for (const Route& route : routes) {
    EXPECT_TRUE(of_routes.insert(name_of(route)).second) << name_of(route) << " is there twice";
  }
  for (const auto& [name, operation] : operations) of_document.insert(name);
  EXPECT_EQ(of_routes, of_document);
}

TEST_F(OpenApiRoutesTest, BodiesAndTheirLimitsAgree) {
  for (const Route& route : routes) {
    const json::object& told = operation(route);
    const json::value* body = told.if_contains("requestBody");
    ASSERT_EQ(body != nullptr, route.body != BodyKind::kNone) << name_of(route);
    const json::value* limit = told.if_contains("x-body-max");
    EXPECT_EQ(limit ? limit->to_number<size_t>() : 0, route.body_max) << name_of(route);
    if (body == nullptr) continue;
    // Every documented type is taken, and one that is not documented is refused.
    std::set<std::string> types;
    for (const auto& [type, schema] : body->at("content").as_object()) types.emplace(type);
    for (const char* type : {"application/json", "application/toml", "text/toml", "text/plain",
                             "text/html", "application/octet-stream"}) {
      Request request;
      request.content_type = type;
      bool taken = true;
      try {
        Router::check_content_type(route, request);
      } catch (const Refusal&) {
        taken = false;
      }
      EXPECT_EQ(taken, types.contains(type)) << name_of(route) << " " << type;
    }
  }
}

// Whoever reads the document knows which token a request takes.
TEST_F(OpenApiRoutesTest, TheRolesAgree) {
  for (const Route& route : routes) {
    std::string told;
    for (const json::value& each : operation(route).at("security").as_array()) {
      told += (told.empty() ? "" : " or ") + std::string(each.at("token").at(0).as_string());
    }
    EXPECT_EQ(told, route.access == Access::kOpen ? "" : roles_with(route.access))
        << name_of(route);
    EXPECT_EQ(text_at(operation(route), "x-access"), access_name(route.access)) << name_of(route);
  }
}

// {name: "integer 0..10 = 7"} and so on.
std::string described(const QueryParameter& parameter) {
  switch (parameter.kind) {
    case QueryParameter::Kind::kInteger:
      return fmt::format("integer {}..{} = {}", parameter.min, parameter.max, parameter.absent);
    case QueryParameter::Kind::kSeconds:
      return fmt::format("seconds to {}", parameter.max);
    case QueryParameter::Kind::kText:
      return fmt::format("text to {}", parameter.max);
    case QueryParameter::Kind::kChoice: {
      std::string choices = "choice";
      for (const std::string& each : parameter.choices) choices += " " + each;
      return choices;
    }
    case QueryParameter::Kind::kPlace:
      return "place";
  }
  return {};
}

std::string described(const json::object& parameter) {
  const json::object& schema = resolved(parameter.at("schema").as_object());
  auto number = [&](const char* key) {
    const json::value* value = schema.if_contains(key);
    return value ? json::serialize(*value) : std::string("0");
  };
  if (text_at(schema, "type") == "integer") {
    return fmt::format("integer {}..{} = {}", number("minimum"), number("maximum"),
                       number("default"));
  }
  if (schema.contains("x-seconds-max")) return "seconds to " + number("x-seconds-max");
  if (schema.contains("enum")) {
    std::string choices = "choice";
    for (const json::value& each : schema.at("enum").as_array()) {
      choices += " " + std::string(each.as_string());
    }
    return choices;
  }
  if (text_at(schema, "pattern").starts_with("^[0-9]{1,18}\\.")) return "place";
  return "text to " + number("maxLength");
}

TEST_F(OpenApiRoutesTest, QueryParametersAgreeWithTheirRangesAndDefaults) {
  for (const Route& route : routes) {
    std::map<std::string, std::string> declared;
    for (const QueryParameter& each : route.parameters) declared[each.name] = described(each);
    std::map<std::string, std::string> documented;
    if (const json::value* parameters = operation(route).if_contains("parameters")) {
      for (const json::value& value : parameters->as_array()) {
        const json::object& parameter = resolved(value.as_object());
        if (text_at(parameter, "in") != "query") continue;
        EXPECT_NE(text_at(parameter, "description"), "") << name_of(route);
        documented[text_at(parameter, "name")] = described(parameter);
      }
    }
    EXPECT_EQ(declared, documented) << name_of(route);
  }
}

TEST_F(OpenApiRoutesTest, WhatAPathNamesIsDocumented) {
  for (const auto& [path, item] : openapi().at("paths").as_object()) {
    std::set<std::string> named;
    const std::string text(path);
    for (size_t at = text.find('{'); at != std::string::npos; at = text.find('{', at + 1)) {
      named.insert(text.substr(at + 1, text.find('}', at) - at - 1));
    }
    std::set<std::string> documented;
    if (const json::value* parameters = item.as_object().if_contains("parameters")) {
      for (const json::value& value : parameters->as_array()) {
        documented.insert(text_at(resolved(value.as_object()), "name"));
      }
    }
    EXPECT_EQ(named, documented) << text;
  }
}

TEST_F(OpenApiRoutesTest, EveryOperationHasItsOwnIdAndSaysWhatItIs) {
  std::set<std::string> ids;
  for (const auto& [name, operation] : operations) {
    EXPECT_TRUE(ids.insert(text_at(*operation, "operationId")).second) << name;
    EXPECT_NE(text_at(*operation, "summary"), "") << name;
    EXPECT_EQ(operation->at("tags").as_array().size(), 1u) << name;
  }
}

// What any request may be answered with, whatever the path, and what a body adds to it.
TEST_F(OpenApiRoutesTest, RefusalsThatAnyRouteGivesAreDocumentedAsProblems) {
  for (const Route& route : routes) {
    std::vector<std::string> expected = {"400", "408", "413", "431", "500", "503"};
    if (route.body != BodyKind::kNone) expected.emplace_back("415");
    if (route.pattern.find('{') != std::string::npos) expected.emplace_back("404");
    const json::object& answers = operation(route).at("responses").as_object();
    for (const std::string& status : expected) {
      EXPECT_TRUE(answers.contains(status)) << name_of(route) << " " << status;
    }
    for (const auto& [status, answer] : answers) {
      if (status[0] < '4') continue;
      EXPECT_TRUE(resolved(answer.as_object())
                      .at("content")
                      .as_object()
                      .contains("application/problem+json"))
          << name_of(route) << " " << std::string(status);
    }
  }
}

}  // namespace
}  // namespace gnomon
