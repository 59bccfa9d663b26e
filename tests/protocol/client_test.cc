#include "protocol/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "tests/protocol/http_test_server.h"

namespace gnomon {
namespace {

using test::HttpReply;
using test::HttpRequest;
using test::HttpTestServer;
using namespace std::chrono_literals;

TEST(HttpClient, SendsMethodTargetAndBodyAndReturnsTheAnswer) {
  HttpTestServer server([](const HttpRequest& request) {
    return HttpReply{201, request.method + " " + request.target + " " + request.body};
  });
  HttpClient client(server.url());
  const HttpResponse response = client.request("POST", "/v1/runs?x=1", "{\"a\":1}");
  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.body, "POST /v1/runs?x=1 {\"a\":1}");
}

TEST(HttpClient, KeepsOneConnectionForManyRequests) {
  HttpTestServer server([](const HttpRequest&) { return HttpReply{200, "ok"}; });
  HttpClient client(server.url());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.request("GET", "/").status, 200);
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, ReturnsAnEmptyBodyFor204) {
  HttpTestServer server([](const HttpRequest&) { return HttpReply{204, ""}; });
  HttpClient client(server.url());
  const HttpResponse response = client.request("POST", "/v1/leases", "{}");
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.body, "");
  EXPECT_EQ(client.request("POST", "/v1/leases", "{}").status, 204);
}

TEST(HttpClient, AnAnswerThatIsTooLongIsRefusedWithAndWithoutItsLength) {
  constexpr uint64_t kMost = 1000;
  // The target is the body's length, behind c without saying so.
  HttpTestServer server([](const HttpRequest& request) {
    const bool chunked = request.target[1] == 'c';
    const size_t length = std::stoul(request.target.substr(chunked ? 2 : 1));
    return HttpReply{.body = std::string(length, 'x'), .chunked = chunked};
  });
  HttpClient client(ClientOptions{.url = server.url(), .answer_bytes_max = kMost});
  for (const std::string target : {"/", "/c"}) {
    const HttpResponse longest = client.request("GET", target + "1000");
    EXPECT_EQ(longest.body.size(), kMost);
    try {
      client.request("GET", target + "1001");
      FAIL() << "not thrown";
    } catch (const ConnectionError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("an answer of more than 1000 bytes"));
    }
    EXPECT_EQ(client.request("GET", target + "10").body.size(), 10u) << "on a new connection";
  }
}

TEST(HttpClient, AnErrorStatusIsReturnedByRequestAndThrownByChecked) {
  HttpTestServer server([](const HttpRequest&) {
    return HttpReply{409, R"({"type":"about:blank","title":"Conflict","status":409,)"
                          R"("detail":"token 3 is stale","accepted":"token 4","extension":[1]})"};
  });
  HttpClient client(server.url());
  EXPECT_EQ(client.request("GET", "/v1/x").status, 409);
  try {
    client.checked("GET", "/v1/x");
    FAIL() << "not thrown";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 409);
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("Conflict: token 3 is stale (accepted: token 4)"));
  }
}

TEST(HttpClient, AnErrorThatIsNoProblemDocumentIsShownAsItIs) {
  HttpTestServer server([](const HttpRequest&) { return HttpReply{502, "<h1>Bad gateway</h1>"}; });
  HttpClient client(server.url());
  try {
    client.checked("GET", "/");
    FAIL() << "not thrown";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 502);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("<h1>Bad gateway</h1>"));
  }
}

TEST(HttpClient, ReconnectsWhenThePeerClosedTheKeptConnection) {
  HttpTestServer server([](const HttpRequest&) {
    return HttpReply{.status = 200, .body = "ok", .close_after = true};
  });
  HttpClient client(server.url());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(client.request("GET", "/").body, "ok");
  EXPECT_EQ(server.connections(), 5);
}

TEST(HttpClient, ReconnectsAfterTheServerWasRestarted) {
  HttpTestServer server([](const HttpRequest&) { return HttpReply{200, "ok"}; });
  HttpClient client(server.url());
  EXPECT_EQ(client.request("GET", "/").status, 200);
  server.stop();
  EXPECT_THROW(client.request("GET", "/"), ConnectionError);
  server.start();
  EXPECT_EQ(client.request("GET", "/").status, 200);
}

TEST(HttpClient, AFreshConnectionThatIsClosedUnansweredIsAConnectionError) {
  std::atomic<int> requests = 0;
  HttpTestServer server([&](const HttpRequest&) {
    ++requests;
    return HttpReply{.close_unanswered = true};
  });
  HttpClient client(server.url());
  EXPECT_THROW(client.request("GET", "/"), ConnectionError);
  EXPECT_EQ(requests, 1);
}

TEST(HttpClient, TimesOutWhenNoAnswerComesAndWorksAgainAfterwards) {
  HttpTestServer server([&server](const HttpRequest& request) {
    if (request.target == "/slow") server.hold();
    return HttpReply{200, request.target};
  });
  HttpClient client(server.url());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(client.request("GET", "/slow", {}, 100ms), ConnectionError);
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, 95ms);
  EXPECT_LT(waited, 5s);
  EXPECT_EQ(client.request("GET", "/fast").body, "/fast")
      << "a late answer must not be taken for this one";
  server.release();
}

TEST(HttpClient, CancelEndsALongPollOfAnotherThread) {
  std::promise<void> arrived;
  HttpTestServer server([&](const HttpRequest& request) {
    if (request.target == "/poll") {
      arrived.set_value();
      server.hold();
    }
    return HttpReply{200, "ok"};
  });
  HttpClient client(server.url());
  auto poll =
      std::async(std::launch::async, [&] { return client.request("GET", "/poll", {}, 10min); });
  arrived.get_future().wait();
  client.cancel();
  try {
    poll.get();
    FAIL() << "not cancelled";
  } catch (const ConnectionError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("cancelled"));
  }
  EXPECT_EQ(client.request("GET", "/again").status, 200);
  server.release();
}

TEST(HttpClient, CancelBetweenRequestsEndsTheNextOne) {
  HttpTestServer server([](const HttpRequest&) { return HttpReply{200, "ok"}; });
  HttpClient client(server.url());
  client.cancel();
  EXPECT_THROW(client.request("GET", "/"), ConnectionError);
  EXPECT_EQ(client.request("GET", "/").status, 200);
}

TEST(HttpClient, ACancelledRequestThatHadNotBegunIsNeverSent) {
  std::atomic<int> requests = 0;
  HttpTestServer server([&](const HttpRequest&) {
    ++requests;
    return HttpReply{200, "ok"};
  });
  HttpClient client(server.url());
  EXPECT_EQ(client.request("GET", "/").status,
            200);  // leaves a connection open that could be written to
  client.cancel();
  EXPECT_THROW(client.request("POST", "/once"), ConnectionError);
  EXPECT_EQ(client.request("POST", "/once").status, 200);
  EXPECT_EQ(requests, 2);
}

TEST(HttpClient, NobodyListeningIsAConnectionErrorThatNamesTheUrl) {
  std::string url;
  {
    HttpTestServer gone([](const HttpRequest&) { return HttpReply{}; });
    url = gone.url();
  }
  HttpClient client(url);
  try {
    client.request("GET", "/v1/runs");
    FAIL() << "not thrown";
  } catch (const ConnectionError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(url));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("GET /v1/runs"));
  }
}

TEST(HttpClient, NoRedirectIsFollowed) {
  HttpTestServer other([](const HttpRequest&) { return HttpReply{200, "elsewhere"}; });
  HttpTestServer server([&](const HttpRequest&) {
    return HttpReply{.status = 302, .headers = {{"location", other.url() + "/"}}};
  });
  HttpClient client(server.url());
  EXPECT_EQ(client.request("GET", "/").status, 302);
  EXPECT_EQ(other.connections(), 0);
}

// A token would go through them.
TEST(HttpClient, ProxiesOfTheEnvironmentAreNotAsked) {
  HttpTestServer proxy([](const HttpRequest&) { return HttpReply{200, "proxy"}; });
  HttpTestServer server([](const HttpRequest&) { return HttpReply{200, "server"}; });
  for (const char* name : {"http_proxy", "all_proxy"}) ::setenv(name, proxy.url().c_str(), 1);
  const std::string body = HttpClient(server.url()).request("GET", "/").body;
  for (const char* name : {"http_proxy", "all_proxy"}) ::unsetenv(name);
  EXPECT_EQ(body, "server");
}

TEST(HttpClient, TheTargetGoesAsItIs) {
  HttpTestServer server([](const HttpRequest& request) { return HttpReply{200, request.target}; });
  HttpClient client(server.url() + "/");
  for (const std::string target : {"/v1/../x", "/a%2Fb?c=%20d&e", "/v1/runs?after=1#2"}) {
    EXPECT_EQ(client.request("GET", target).body, target);
  }
}

TEST(HttpClient, LargeBodiesTravelWhole) {
  HttpTestServer server([](const HttpRequest& request) { return HttpReply{200, request.body}; });
  HttpClient client(server.url());
  const std::string body(8u << 20, 'x');
  EXPECT_EQ(client.request("POST", "/", body, 60s).body, body);
}

TEST(HttpClient, RefusesUrlsItCannotUse) {
  for (const char* url :
       {"", "127.0.0.1:7717", "ftp://host:1", "http://", "https://",
        "http://host:", "https://user:secret@host", "http://host:99999", "http://host:0",
        "http://host:7a", "http://user@host:1", "http://host/path", "http://[::1", "http:///host",
        "http:/host", "http://host?q", "http://host#f", "http://ho st", "HTTP://host"}) {
    EXPECT_THROW(HttpClient{url}, ConfigError) << url;
  }
  for (const char* url : {"http://localhost", "http://127.0.0.1:7717", "http://127.0.0.1:7717/",
                          "http://[::1]:80", "https://gnomon.example", "https://[::1]:7717/"}) {
    EXPECT_NO_THROW(HttpClient{url}) << url;
  }
}

}  // namespace
}  // namespace gnomon
