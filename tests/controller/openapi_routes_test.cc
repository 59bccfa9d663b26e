// The routes of the daemon and the operations of the document of its API are the same set, and the
// document lists what the routes take: a route without an operation fails here, and so does an
// operation without a route.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "controller/api/parameters.h"
#include "controller/auth/roles.h"
#include "tests/controller/openapi_document.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using test::openapi;
using test::resolved;
using test::text_at;

class OpenApiRoutesTest : public ::testing::Test {
 protected:
  OpenApiRoutesTest() {
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

  const std::vector<Route>& routes = test::routes();
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
    const json::object& documented = operation(route);
    const json::value* body = documented.if_contains("requestBody");
    ASSERT_EQ(body != nullptr, route.body.kind != BodyKind::kNone) << name_of(route);
    const json::value* limit = documented.if_contains("x-body-max");
    EXPECT_EQ(limit ? limit->to_number<size_t>() : 0, route.body.max) << name_of(route);
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
      } catch (const HttpError&) {
        taken = false;
      }
      EXPECT_EQ(taken, types.contains(type)) << name_of(route) << " " << type;
    }
  }
}

// Whoever reads the document knows which token a request takes.
TEST_F(OpenApiRoutesTest, RolesAreThoseOfTheAccess) {
  EXPECT_EQ(json::serialize(operation({"POST", "/v1/leases", {}, {}}).at("security")),
            R"([{"token":["trainer"]},{"token":["verifier"]},{"token":["admin"]}])");
  EXPECT_EQ(json::serialize(operation({"GET", "/livez", {}, {}}).at("security")), "[]");
  for (const Route& route : routes) {
    EXPECT_EQ(text_at(operation(route), "x-access"), access_name(route.access)) << name_of(route);
  }
}

TEST_F(OpenApiRoutesTest, ParametersAreDocumentedWithASentence) {
  for (const Route& route : routes) {
    std::set<std::string> declared;
    for (const QueryParameter& each : route.parameters) declared.insert(each.name);
    std::set<std::string> documented;
    if (const json::value* parameters = operation(route).if_contains("parameters")) {
      for (const json::value& value : parameters->as_array()) {
        const json::object& parameter = resolved(value.as_object());
        EXPECT_NE(text_at(parameter, "description"), "") << name_of(route);
        if (text_at(parameter, "in") == "query") documented.insert(text_at(parameter, "name"));
      }
    }
    EXPECT_EQ(declared, documented) << name_of(route);
  }
}

// The daemon takes exactly the values that the document's pattern has.
TEST_F(OpenApiRoutesTest, PatternsOfSecondsAreWhatIsTaken) {
  int taken = 0, refused = 0;
  for (const Route& route : routes) {
    for (const json::value& value : operation(route).contains("parameters")
                                        ? operation(route).at("parameters").as_array()
                                        : json::array{}) {
      const json::object& documented = resolved(value.as_object());
      for (const QueryParameter& each : route.parameters) {
        if (each.kind != QueryParameter::Kind::kSeconds || each.name != text_at(documented, "name"))
          continue;
        const std::regex pattern(text_at(documented.at("schema").as_object(), "pattern"));
        for (int64_t whole :
             {int64_t{0}, int64_t{7}, int64_t{10}, int64_t{99}, int64_t{100}, int64_t{109},
              int64_t{119}, each.max - 1, each.max, each.max + 1, 10 * each.max}) {
          for (const char* rest : {"", "s", ".5", ".25s"}) {
            Request request;
            request.query[each.name] = std::to_string(whole) + rest;
            bool accepted = true;
            try {
              check_query(route.parameters, request);
            } catch (const HttpError&) {
              accepted = false;
            }
            EXPECT_EQ(std::regex_match(request.query[each.name], pattern), accepted)
                << request.query[each.name];
            ++(accepted ? taken : refused);
          }
        }
      }
    }
  }
  EXPECT_GT(taken, 50);
  EXPECT_GT(refused, 20);
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
    if (route.body.kind != BodyKind::kNone) expected.emplace_back("415");
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
