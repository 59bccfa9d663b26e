#include "controller/api/router.h"

#include <gmock/gmock.h>
#include <sqlite3.h>

#include "controller/api/server.h"
#include "storage/ledger_connection.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Route route(const char* method, const char* pattern, BodyKind body = BodyKind::kNone) {
  return {method, pattern, {body, 100}, [](Exchange&, const Request&) { return Response{}; }, true};
}

Problem problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const HttpError& refusal) {
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
  EXPECT_EQ(problem.accepted, "GET, HEAD, POST");
}

TEST_F(RouterTest, HeadIsTheRouteOfGetWhereThereIsOne) {
  Request asked = request("HEAD", "/v1/runs/run-3/steps");
  EXPECT_EQ(router.find(asked).method, "GET");
  EXPECT_EQ(asked.method, "HEAD");
  EXPECT_EQ(problem_of([&] {
              Request other = request("HEAD", "/v1/runs/run-3/directives/7/ack");
              router.find(other);
            }).accepted,
            "POST");
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
  for (const char* broken : {"a=%", "a=%4", "a=%zz", "a=1&b=2&a=1"}) {
    EXPECT_EQ(problem_of([&] { parse_query(broken); }).status, 400) << broken;
  }
}

TEST(QueryTest, ValuesAreThoseOfTheDeclaredParameters) {
  const std::vector<QueryParameter> declared = {
      integer_parameter("n", "Help.", 0, 10, 1),
      integer_parameter("absent", "Help.", 0, 10, 7),
      seconds_parameter("wait", "Help.", 120),
      place_parameter("after", "Help."),
      text_parameter("name", "Help.", 4),
      choice_parameter("state", "Help.", {"live", "failed"})};
  Request asked;
  asked.parameters = &declared;
  asked.query = {
      {"n", "5"}, {"wait", "1.5s"}, {"after", "2.30"}, {"name", "äöüß"}, {"state", "live"}};
  EXPECT_EQ(problem_of([&] { check_query(declared, asked); }).status, 500) << "no refusal";
  EXPECT_EQ(query_integer(asked, "n"), 5);
  EXPECT_EQ(query_integer(asked, "absent"), 7);
  EXPECT_FALSE(query_given(asked, "absent"));
  EXPECT_EQ(query_seconds(asked, "wait"), 1.5);
  EXPECT_EQ(query_place(asked, "after"), (std::pair<int64_t, int64_t>{2, 30}));
  EXPECT_EQ(query_text(asked, "name"), "äöüß");
  EXPECT_THROW(query_integer(asked, "undeclared"), std::logic_error);
}

TEST(QueryTest, WhatIsNotDeclaredOrOutOfRangeIsRefusedWithItsNameAndTheRange) {
  const std::vector<QueryParameter> declared = {
      integer_parameter("n", "Help.", 6, 10, 6), seconds_parameter("wait", "Help.", 120),
      place_parameter("after", "Help."), text_parameter("name", "Help.", 4),
      choice_parameter("state", "Help.", {"live", "failed"})};
  struct Case {
    const char* name;
    const char* value;
    const char* accepted;
  };
  for (const Case& each :
       {Case{"n", "5", "6 to 10"}, Case{"n", "5x", "6 to 10"}, Case{"n", "", "6 to 10"},
        Case{"wait", "900", "0 to 120"}, Case{"wait", "-1", "0 to 120"},
        Case{"wait", "1e1", "0 to 120"}, Case{"wait", "inf", "0 to 120"},
        Case{"wait", "s", "0 to 120"}, Case{"after", "3", "two numbers"},
        Case{"after", "3.x", "two numbers"}, Case{"name", "12345", "at most 4"},
        Case{"state", "dead", "live, failed"}, Case{"more", "1", "n, wait, after, name, state"}}) {
    Request asked;
    asked.query = {{each.name, each.value}};
    const Problem problem = problem_of([&] { check_query(declared, asked); });
    EXPECT_EQ(problem.status, 400) << each.name << "=" << each.value;
    EXPECT_THAT(problem.detail, HasSubstr(each.name));
    EXPECT_THAT(problem.accepted, HasSubstr(each.accepted));
  }
}

TEST(ListenTest, TakesAnAddressAndAPort) {
  EXPECT_EQ(parse_listen("127.0.0.1:7717").port, 7717);
  EXPECT_EQ(parse_listen("[::1]:0").address, "::1");
  EXPECT_EQ(parse_listen("localhost:1").address, "127.0.0.1");
  EXPECT_TRUE(is_loopback(parse_listen("127.9.9.9:1")));
  EXPECT_TRUE(is_loopback(parse_listen("[::1]:1")));
  EXPECT_FALSE(is_loopback(parse_listen("0.0.0.0:7717")));
  EXPECT_FALSE(is_loopback(parse_listen("[::]:7717")));
  for (const char* bad : {"127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1", "host:1"}) {
    EXPECT_THROW(parse_listen(bad), ConfigError) << bad;
  }
}

TEST(ResponseTest, AReadThatTookTooLongIsNoFailedWrite) {
  const auto interrupted =
      std::make_exception_ptr(LedgerError("cannot read: it took too long", SQLITE_INTERRUPT));
  const Response response = response_for(interrupted);
  EXPECT_EQ(response.status, 400) << "the same request would take as long again";
  EXPECT_THAT(response.body, HasSubstr("Too much at once"));
  EXPECT_EQ(response_for(std::make_exception_ptr(LedgerError("no", SQLITE_IOERR))).status, 503);
}

}  // namespace
}  // namespace gnomon
