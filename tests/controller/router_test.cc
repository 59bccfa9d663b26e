#include "controller/api/router.h"

#include <gmock/gmock.h>

#include "controller/api/server.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Route route(const char* method, const char* pattern, BodyKind body = BodyKind::kNone) {
  return {method, pattern, body, 100, [](Exchange&, const Request&) { return Response{}; }, true};
}

Problem problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Refusal& refusal) {
    return refusal.problem();
  }
  return {};
}

class RouterTest : public ::testing::Test {
 protected:
  Router router{
      {route("GET", "/v1/runs"), route("POST", "/v1/runs"), route("GET", "/v1/runs/{run}/steps"),
       route("POST", "/v1/runs/{run}/directives/{number}/ack")},
      route("GET", "/")};
  Request request(const std::string& method, const std::string& path) {
    Request made;
    made.method = method;
    made.path = path;
    return made;
  }
};

TEST_F(RouterTest, FindsTheRouteAndItsArguments) {
  Request asked = request("POST", "/v1/runs/run-3/directives/7/ack");
  EXPECT_EQ(router.find(asked).pattern, "/v1/runs/{run}/directives/{number}/ack");
  EXPECT_THAT(asked.arguments, ElementsAre("run-3", "7"));
}

TEST_F(RouterTest, AKnownPathWithAnotherMethodIs405WithWhatIsAllowed) {
  Problem problem = problem_of([&] {
    Request asked = request("DELETE", "/v1/runs");
    router.find(asked);
  });
  EXPECT_EQ(problem.status, 405);
  EXPECT_EQ(problem.accepted, "GET, POST");
}

TEST_F(RouterTest, AnUnknownPathUnderV1Is404AndOthersAreThePages) {
  for (const char* path : {"/v1", "/v1/", "/v1/run", "/v1/runs/", "/v1/runs/x/steps/y"}) {
    Problem problem = problem_of([&] {
      Request asked = request("GET", path);
      router.find(asked);
    });
    EXPECT_EQ(problem.status, 404) << path;
  }
  Request page = request("GET", "/style.css");
  EXPECT_EQ(router.find(page).pattern, "/");
}

TEST_F(RouterTest, ContentTypesAreCheckedByTheKindOfBody) {
  struct Case {
    BodyKind kind;
    const char* type;
    bool accepted;
  };
  for (const Case& each :
       {Case{BodyKind::kJson, "application/json", true}, Case{BodyKind::kJson, "", true},
        Case{BodyKind::kJson, "text/plain", false}, Case{BodyKind::kToml, "application/toml", true},
        Case{BodyKind::kToml, "text/html", false}, Case{BodyKind::kNone, "text/html", true}}) {
    Request asked;
    asked.content_type = each.type;
    Problem problem =
        problem_of([&] { Router::check_content_type(route("PUT", "/", each.kind), asked); });
    EXPECT_EQ(problem.status, each.accepted ? 500 : 415) << each.type;  // 500: no refusal
  }
}

TEST(QueryTest, IsDecoded) {
  auto values = parse_query("a=1&b=x%20y+z&c&d=%2F");
  EXPECT_EQ(values["a"], "1");
  EXPECT_EQ(values["b"], "x y z");
  EXPECT_EQ(values.count("c"), 1u);
  EXPECT_EQ(values["d"], "/");
  for (const char* broken : {"a=%", "a=%4", "a=%zz"}) {
    EXPECT_EQ(problem_of([&] { parse_query(broken); }).status, 400) << broken;
  }
}

TEST(QueryTest, NumbersAndSecondsNameWhatIsAccepted) {
  Request asked;
  asked.query = {{"n", "5"}, {"bad", "5x"}, {"wait", "1.5s"}, {"long", "900"}};
  EXPECT_EQ(query_integer(asked, "n", 1, 0, 10), 5);
  EXPECT_EQ(query_integer(asked, "absent", 1, 0, 10), 1);
  EXPECT_THAT(problem_of([&] { query_integer(asked, "n", 1, 6, 10); }).accepted,
              HasSubstr("6 to 10"));
  EXPECT_THAT(problem_of([&] { query_integer(asked, "bad", 1, 0, 10); }).detail, HasSubstr("5x"));
  EXPECT_EQ(query_seconds(asked, "wait", 0, 120), 1.5);
  EXPECT_EQ(problem_of([&] { query_seconds(asked, "long", 0, 120); }).status, 400);
}

TEST(ListenTest, TakesLoopbackAddressesOnly) {
  EXPECT_EQ(parse_listen("127.0.0.1:7717").port, 7717);
  EXPECT_EQ(parse_listen("[::1]:0").address, "::1");
  EXPECT_EQ(parse_listen("localhost:1").address, "127.0.0.1");
  for (const char* bad : {"0.0.0.0:7717", "10.0.0.1:1", "127.0.0.1", "127.0.0.1:x",
                          "127.0.0.1:70000", ":1", "host:1"}) {
    EXPECT_THROW(parse_listen(bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace gnomon
