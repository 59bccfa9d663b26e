// A daemon without tokens, and a page of another site in the browser of somebody on its machine:
// nothing that the page makes the browser send may change anything.
#include <fmt/format.h>

#include <algorithm>

#include "tests/controller/api_fixture.h"
#include "tests/controller/openapi_document.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class CrossSiteTest : public ApiTest {
 protected:
  CrossSiteTest() {
    trainer.begin();
    trainer.train(1, 3);
    trainer.client().checked("POST", trainer.path("/overrides"),
                             to_json(OverrideRequest{"pause", "", "", "ann", "to look", 0}));
  }
  // The whole answer to a request with these header lines.
  std::string answer(const std::string& method, const std::string& target,
                     const std::string& headers, const std::string& host = "") {
    RawConnection connection(daemon.port());
    connection.send(
        fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}Content-Type: "
                    "application/json\r\nContent-Length: 2\r\n\r\n{{}}",
                    method, target, host.empty() ? own_host() : host, headers));
    return connection.read_until("never");
  }
  std::string look(const std::string& target, const std::string& headers,
                   const std::string& host = "") {
    RawConnection connection(daemon.port());
    connection.send(fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}\r\n",
                                target, host.empty() ? own_host() : host, headers));
    return connection.read_until("never");
  }
  std::string poll(const std::string& headers, const std::string& host = "") {
    return look("/v1/runs/run-1/directives?after=0", headers, host);
  }
  std::string own_host() const { return fmt::format("127.0.0.1:{}", daemon.port()); }
  std::string state_of_directive() {
    return std::string(get(trainer.path("/directives")).at(0).at("state").as_string());
  }

  FakeTrainer trainer{daemon.url()};
};

TEST_F(CrossSiteTest, APageOfAnotherSiteTakesNoDirective) {
  ASSERT_EQ(state_of_directive(), "pending");
  for (const char* headers :
       {"Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: Cross-Site\r\nSec-Fetch-Mode: no-cors\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        "Sec-Fetch-Site: none\r\n", "Origin: https://evil.example\r\n", "Origin: null\r\n",
        "Origin: http://127.0.0.1:1\r\n", "Sec-Fetch-Site: nonsense\r\n",
        "Referer: https://evil.example/page\r\n"}) {
    EXPECT_THAT(poll(headers), HasSubstr("HTTP/1.1 403")) << headers;
    EXPECT_EQ(state_of_directive(), "pending") << headers;
  }
  EXPECT_THAT(poll("", "evil.example"), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(poll("", "127.0.0.1.evil.example"), HasSubstr("HTTP/1.1 403"));
  EXPECT_EQ(state_of_directive(), "pending");
  // Whoever asks without a browser, and the daemon's own page.
  EXPECT_THAT(
      poll(fmt::format("Sec-Fetch-Site: same-origin\r\nReferer: http://{}/\r\n", own_host())),
      HasSubstr("HTTP/1.1 200"));
  EXPECT_EQ(state_of_directive(), "delivered");
  EXPECT_EQ(trainer.poll(0).directives.size(), 1u);
}

TEST_F(CrossSiteTest, ItsRequestsChangeNothingWhateverTheRoute) {
  for (const auto& [pattern, item] : test::openapi().at("paths").as_object()) {
    for (const auto& [key, operation] : item.as_object()) {
      std::string method = key;
      std::ranges::transform(method, method.begin(), [](char c) { return std::toupper(c); });
      if (key == "parameters" || key == "get") continue;
      std::string path = pattern;
      for (const char* name : {"{run}", "{lease}", "{number}"}) {
        if (size_t at = path.find(name); at != std::string::npos) {
          path.replace(at, std::string(name).size(), "1");
        }
      }
      for (const char* headers : {"Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n",
                                  "Origin: https://evil.example\r\n", "Origin: null\r\n"}) {
        EXPECT_THAT(answer(method, path, headers), HasSubstr("HTTP/1.1 403"))
            << method << " " << path << " " << headers;
      }
    }
  }
}

// A link on another site may lead to the page, which only reads.
TEST_F(CrossSiteTest, ItMayLinkToThePage) {
  const std::string link =
      "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nReferer: "
      "https://wiki.example/\r\n";
  for (const char* target : {"/", "/v1/runs", "/v1/runs/run-1/directives"}) {
    EXPECT_THAT(look(target, link), HasSubstr("HTTP/1.1 200")) << target;
  }
}

}  // namespace
}  // namespace gnomon
