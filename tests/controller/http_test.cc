// What RFC 9110 and RFC 9112 ask of any server, byte by byte.
#include <fmt/format.h>

#include "controller/api/request_head.h"
#include "controller/auth/http_error.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RequestHeadTest, ATargetInAbsoluteFormIsItsPathAndItsHost) {
  const auto of = [](std::string_view target) {
    RequestHead head;
    head.target = target;
    head.host = "field";
    const Request request = request_of(head);
    return fmt::format("{} {} {}", head.host, request.path, request.target);
  };
  EXPECT_EQ(of("/v1/runs?limit=1"), "field /v1/runs /v1/runs?limit=1");
  EXPECT_EQ(of("http://here:7717/v1/runs?limit=1"), "here:7717 /v1/runs /v1/runs?limit=1");
  EXPECT_EQ(of("HTTPS://here/a%20b"), "here /a b /a%20b");
  EXPECT_EQ(of("http://here"), "here / /");
  EXPECT_EQ(of("http://here?x"), "here / ?x");
  EXPECT_THROW(of("http:///v1/runs"), HttpError);
  EXPECT_THROW(of("http://localhost:x@evil.example/v1/runs"), HttpError);
  EXPECT_EQ(of("/http://here"), "field /http://here /http://here");
}

TEST(RequestHeadTest, DatesAreThoseOfTheSpecification) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
}

class HttpTest : public ApiTest {
 protected:
  std::string raw(const std::string& text) const {
    RawConnection connection(daemon.port());
    connection.send(text);
    return connection.read_until("never");
  }
  static constexpr const char* kClose = "Connection: close\r\n\r\n";
};

TEST_F(HttpTest, ARequestHasOneHost) {
  const std::string get = "GET /livez HTTP/1.1\r\n";
  EXPECT_THAT(raw(get + kClose), StartsWith("HTTP/1.1 400"));
  // The connection ends, although the client would have gone on.
  EXPECT_THAT(raw(get + "Host: localhost\r\nHost: other\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("2 Host fields"),
                    HasSubstr("Connection: close")));
  EXPECT_THAT(raw("GET /livez HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.0 200"));
}

TEST_F(HttpTest, AProxysFormOfATargetIsTaken) {
  EXPECT_THAT(raw(std::string("GET http://localhost/livez HTTP/1.1\r\nHost: x\r\n") + kClose),
              StartsWith("HTTP/1.1 200"));
  // Its host is the one that counts, also for who may ask.
  EXPECT_THAT(
      raw(std::string("GET http://evil.example/v1/runs HTTP/1.1\r\nHost: localhost\r\n") + kClose),
      StartsWith("HTTP/1.1 403"));
}

TEST_F(HttpTest, EveryAnswerSaysWhenItWasMade) {
  for (const char* path : {"/livez", "/nothing", "/v1/runs/7"}) {
    EXPECT_THAT(raw(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}", path, kClose)),
                ContainsRegex("Date: [A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} "
                              "[0-9:]{8} GMT"))
        << path;
  }
}

TEST_F(HttpTest, WhatHasNotChangedVariesAsWhatHas) {
  const std::string get = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n";
  const std::string whole = raw(get + kClose);
  const size_t at = whole.find("ETag: ") + 6;
  const std::string tag = whole.substr(at, whole.find("\r\n", at) - at);
  EXPECT_THAT(raw(get + "If-None-Match: " + tag + "\r\n" + kClose),
              AllOf(StartsWith("HTTP/1.1 304"), HasSubstr("Vary: Accept-Encoding")));
}

TEST_F(HttpTest, AnEmptyLineBeforeARequestIsPassedOver) {
  EXPECT_THAT(raw(std::string("\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n") + kClose),
              StartsWith("HTTP/1.1 200"));
  // However it comes: what follows is the next request, or nothing.
  RawConnection connection(daemon.port());
  connection.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  connection.read_until("true}");
  connection.send("\r");
  EXPECT_FALSE(connection.ended_within(std::chrono::milliseconds(200)));
  connection.send("\n\r\n");
  connection.send("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(connection.read_until("\"accepted\""), HasSubstr("404 Not Found"));
  // Behind a body, as some clients send it.
  const std::string two =
      raw(std::string(
              "POST /v1/policy/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
              "Content-Length: 2\r\n\r\nx=\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n") +
          kClose);
  EXPECT_THAT(two, AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("HTTP/1.1 200 OK"),
                         HasSubstr("\"live\":true")));
}

TEST_F(HttpTest, ACodingOfTheTransferThatIsNotKnownIsToldAsSuch) {
  EXPECT_THAT(raw("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, "
                  "chunked\r\n\r\n0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 501"), HasSubstr("gzip, chunked"),
                    HasSubstr("Connection: close")));
}

}  // namespace
}  // namespace gnomon
