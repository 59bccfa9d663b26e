// Content codings, HEAD and entity tags, byte by byte.
#include <fmt/format.h>
#include <zlib.h>

#include <regex>

#include "controller/api/encoding.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// By zlib itself.
std::string gunzip(const std::string& packed) {
  constexpr int kGzipWindow = 15 + 16;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipWindow) != Z_OK) throw std::bad_alloc();
  std::string out(16 << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  inflateEnd(&stream);
  return out;
}

TEST(EncodingTest, WhatIsCompressedComesBackWhole) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += fmt::format("{{\"step\":{}}},", i);
  EXPECT_LT(gzip(text).size(), text.size() / 4);
  EXPECT_EQ(gunzip(gzip(text)), text);
  EXPECT_EQ(gunzip(gzip("")), "");
}

TEST(EncodingTest, AcceptEncodingIsReadWithItsWeights) {
  for (const char* yes :
       {"gzip", "GZIP", "br, gzip;q=0.5", "deflate, x-gzip", "*", "*;q=0.1", "gzip, *;q=0"}) {
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  }
  for (const char* no : {"", "identity", "br", "gzip;q=0", "gzip;q=0, *", "gzip;q=0.0", "gzipped",
                         "*;q=0", "gzip;q=x"}) {
    EXPECT_FALSE(accepts_gzip(no)) << no;
  }
}

TEST(EncodingTest, EntityTagsAreComparedWeakly) {
  const std::string tag = entity_tag("text");
  EXPECT_TRUE(matches_entity_tag(tag, tag));
  EXPECT_TRUE(matches_entity_tag(tag.substr(2), tag));
  EXPECT_TRUE(matches_entity_tag("\"other\", " + tag, tag));
  EXPECT_TRUE(matches_entity_tag("*", tag));
  EXPECT_FALSE(matches_entity_tag("\"other\"", tag));
  EXPECT_FALSE(matches_entity_tag("", tag));
}

class ApiEncodingTest : public ApiTest {
 protected:
  ApiEncodingTest() {
    trainer.begin();
    StepBatch batch;
    for (int64_t step = 1; step <= 300; ++step) batch.steps.push_back(test_step(step));
    trainer.post_steps(batch);
  }
  // The answer to a request on a connection that is closed behind it.
  std::string raw(const std::string& head, const std::string& body = {}) {
    RawConnection connection(daemon.port());
    connection.send(
        head + "\r\nHost: localhost\r\nConnection: close\r\n" +
        (body.empty() ? std::string() : fmt::format("Content-Length: {}\r\n", body.size())) +
        "\r\n" + body);
    return connection.read_until("nothing that ever comes");
  }
  static std::string head_of(const std::string& answer) {
    return answer.substr(0, answer.find("\r\n\r\n"));
  }
  static std::string body_of(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(ApiEncodingTest, LargeAnswersAreGzipWhereTheClientTakesIt) {
  const std::string get = "GET " + trainer.path("/steps") + " HTTP/1.1";
  const std::string plain = raw(get);
  const std::string packed = raw(get + "\r\nAccept-Encoding: br, gzip");
  EXPECT_THAT(head_of(plain), Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(head_of(plain), HasSubstr("Vary: Accept-Encoding"));
  EXPECT_THAT(head_of(packed), HasSubstr("Content-Encoding: gzip"));
  EXPECT_THAT(head_of(packed), HasSubstr("Vary: Accept-Encoding"));
  EXPECT_LT(packed.size(), plain.size() / 3);
  EXPECT_EQ(gunzip(body_of(packed)), body_of(plain));
  const std::string small = raw("GET /livez HTTP/1.1\r\nAccept-Encoding: gzip");
  EXPECT_THAT(head_of(small), Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(
      head_of(raw("GET /v1/events HTTP/1.0\r\nAccept-Encoding: gzip\r\nLast-Event-ID: 999")),
      HasSubstr("410"));
}

TEST_F(ApiEncodingTest, HeadIsGetWithoutItsBody) {
  for (const std::string& path :
       {trainer.path("/steps"), trainer.path(""), std::string("/livez"), std::string("/metrics"),
        std::string("/openapi.json"), std::string("/"), std::string("/v1/runs/9")}) {
    const std::string got = raw("GET " + path + " HTTP/1.1");
    const std::string head = raw("HEAD " + path + " HTTP/1.1");
    EXPECT_EQ(body_of(head), "") << path;
    if (path != "/metrics") {
      const auto undated = [](const std::string& text) {
        return std::regex_replace(text, std::regex("\r\nDate: [^\r]*"), "");
      };
      EXPECT_EQ(undated(head_of(head)), undated(head_of(got))) << path;
    }
  }
  EXPECT_THAT(raw("HEAD /v1/leases HTTP/1.1"), HasSubstr("405"));
}

TEST_F(ApiEncodingTest, HeadDeliversNothingAndBeginsNoStream) {
  FakeVerifier verifier(daemon.url());
  HttpClient client = daemon.client();
  client.checked("POST", trainer.path("/overrides"),
                 to_json(OverrideRequest{"checkpoint_now", "", "", "ada", "to see", 0}));
  EXPECT_THAT(raw("HEAD " + trainer.path("/directives?after=0&wait=30") + " HTTP/1.1"),
              HasSubstr("200 OK"));
  EXPECT_EQ(get(trainer.path("/directives")).at(0).at("state").as_string(), "pending");
  EXPECT_THAT(raw("HEAD /v1/events?after=0 HTTP/1.1"), HasSubstr("text/event-stream"));
  EXPECT_THAT(raw("HEAD /v1/events?after=99999 HTTP/1.1"), HasSubstr("410"));
}

TEST_F(ApiEncodingTest, WhatTheClientHasIsNotSentAgain) {
  for (const char* path : {"/openapi.json", "/"}) {
    const std::string first = head_of(raw(fmt::format("GET {} HTTP/1.1", path)));
    const size_t at = first.find("ETag: ") + 6;
    ASSERT_LT(at, first.size()) << path;
    const std::string tag = first.substr(at, first.find("\r\n", at) - at);
    const std::string again = raw(fmt::format("GET {} HTTP/1.1\r\nIf-None-Match: {}", path, tag));
    EXPECT_THAT(again, HasSubstr("304 Not Modified"));
    EXPECT_THAT(again, HasSubstr("ETag: " + tag));
    EXPECT_EQ(body_of(again), "");
    EXPECT_THAT(raw(fmt::format("GET {} HTTP/1.1\r\nIf-None-Match: \"other\"", path)),
                HasSubstr("200 OK"));
  }
}

TEST_F(ApiEncodingTest, ARequestBodyWithACodingIsRefused) {
  const std::string post = "POST " + trainer.path("/steps") +
                           " HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: ";
  const std::string body = to_json(StepBatch{{test_step(301)}});
  EXPECT_THAT(raw(post + "identity", body), HasSubstr("\"accepted\":1"));
  for (const std::string coding : {"gzip", "zstd"}) {
    const std::string answer = raw(post + coding, body);
    EXPECT_THAT(answer, HasSubstr("415"));
    EXPECT_THAT(answer, HasSubstr(coding));
    EXPECT_THAT(answer, HasSubstr("no Content-Encoding"));
  }
}

TEST_F(ApiEncodingTest, AnAnswerWithoutContentSaysNoLength) {
  const std::string body = to_json(LeaseRequest{"v:1", test_fingerprint()});
  FakeVerifier verifier(daemon.url());
  while (const auto lease = verifier.lease()) verifier.complete(*lease, 0);
  const std::string answer = raw("POST /v1/leases HTTP/1.1", body);
  EXPECT_THAT(answer, HasSubstr("204 No Content"));
  EXPECT_THAT(answer, Not(HasSubstr("Content-Length")));
}

}  // namespace
}  // namespace gnomon
