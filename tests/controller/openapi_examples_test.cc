// What the API's document shows as examples is taken as it stands by a daemon that is new.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/controller/api_fixture.h"
#include "tests/controller/openapi_document.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using test::openapi;
using test::resolved;

struct Example {
  std::string method, path, content_type, body;
};

// The example of a body, as it is sent; nothing where there is none.
std::optional<std::string> example_of(const json::object& media, const std::string& content_type) {
  const json::object& schema = resolved(media.at("schema").as_object());
  const json::value* found = media.if_contains("example");
  if (!found) found = schema.if_contains("example");
  if (!found && schema.contains("examples")) found = &schema.at("examples").as_array().at(0);
  if (!found) return std::nullopt;
  if (content_type == "application/json") return json::serialize(*found);
  return std::string(found->as_string());
}

std::string filled_in(std::string path) {
  for (const std::string name : {"{run}", "{lease}", "{number}"}) {
    if (const size_t at = path.find(name); at != std::string::npos)
      path.replace(at, name.size(), "1");
  }
  return path;
}

std::vector<Example> examples() {
  std::vector<Example> found;
  for (const auto& [path, item] : openapi().at("paths").as_object()) {
    for (const auto& [method, operation] : item.as_object()) {
      const json::object* described = operation.if_object();
      if (!described || !described->contains("requestBody")) continue;
      for (const auto& [type, media] : described->at("requestBody").at("content").as_object()) {
        const std::string content_type(type);
        const auto body = example_of(media.as_object(), content_type);
        EXPECT_TRUE(body) << std::string(path) << " " << content_type << " has no example";
        if (body)
          found.push_back({method == "put" ? "PUT" : "POST", filled_in(path), content_type, *body});
      }
    }
  }
  return found;
}

// Each comes after what it speaks of.
int turn(const std::string& path) {
  const std::vector<std::string> first = {
      "/v1/runs",   "/v1/runs/1/attempts",    "/v1/runs/1/checkpoints", "/v1/runs/1/steps",
      "/v1/leases", "/v1/leases/1/heartbeat", "/v1/leases/1/complete",  "/v1/runs/1/overrides"};
  const auto at = std::ranges::find(first, path);
  return path.ends_with("/finished") ? 100 : static_cast<int>(at - first.begin());
}

class OpenApiExamplesTest : public ApiTest {
 protected:
  // The number of the lease that the document calls 1 is known once it is given.
  std::string answer_to(Example each) {
    constexpr std::string_view kDocumented = "/v1/leases/1/";
    if (each.path.starts_with(kDocumented)) {
      each.path = fmt::format("/v1/leases/{}/{}", lease, each.path.substr(kDocumented.size()));
    }
    const std::string answer = answer_as_it_stands(each);
    constexpr std::string_view kLease = "\"lease\":";
    if (const size_t at = answer.find(kLease);
        each.path == "/v1/leases" && at != std::string::npos) {
      lease = std::stoll(answer.substr(at + kLease.size()));
    }
    return answer;
  }
  std::string answer_as_it_stands(const Example& each) const {
    RawConnection connection(daemon.port());
    connection.send(
        fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {}\r\n"
                    "Content-Length: {}\r\n\r\n{}",
                    each.method, each.path, each.content_type, each.body.size(), each.body));
    return connection.read_until("never");
  }
  int64_t lease = 0;
};

TEST_F(OpenApiExamplesTest, EachIsTakenAsItStands) {
  // There is no folder for backups, the trainer has just spoken, and a lease that was completed is
  // over.
  const std::map<std::string, int> refused = {
      {"/v1/backups", 409}, {"/v1/runs/1/end", 409}, {"/v1/leases/1/fail", 409}};
  std::vector<Example> all = examples();
  ASSERT_GT(all.size(), 15u);
  std::ranges::stable_sort(all, {}, [](const Example& each) { return turn(each.path); });
  for (const Example& each : all) {
    const std::string answer = answer_to(each);
    const auto known = refused.find(each.path);
    const std::string expected =
        known == refused.end() ? "HTTP/1.1 20" : fmt::format("HTTP/1.1 {}", known->second);
    EXPECT_THAT(answer, ::testing::StartsWith(expected)) << each.path << " " << each.content_type;
  }
}

}  // namespace
}  // namespace gnomon
