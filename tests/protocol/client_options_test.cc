// Who a client says it is, and how long it waits when it is told to.
#include "protocol/client_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

#include "base/files.h"
#include "protocol/backoff.h"
#include "protocol/client.h"
#include "tests/protocol/http_test_server.h"
#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

using test::HttpReply;
using test::HttpRequest;
using test::HttpTestServer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ClientOptionsTest : public ::testing::Test {
 protected:
  ~ClientOptionsTest() override {
    for (const char* name : {"GNOMON_TOKEN", "GNOMON_TOKEN_FILE", "GNOMON_CA_FILE",
                             "GNOMON_CERTIFICATE_FILE", "GNOMON_KEY_FILE"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  std::string token_file(const std::string& text) {
    write_file_atomically(folder_ / "token", text);
    return (folder_ / "token").string();
  }
  static std::string refusal(const ClientOptions& options) {
    try {
      const HttpClient client(options);
      return {};
    } catch (const ConfigError& error) {
      return error.what();
    }
  }
  // What came as Authorization, and `status` for the first `refused` requests.
  HttpReply answer(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    seen_.push_back(request.headers.contains("authorization") ? request.headers.at("authorization")
                                                              : "");
    return static_cast<int>(seen_.size()) <= refused_ ? refusal_ : HttpReply{200, "{}"};
  }
  std::vector<std::string> seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  test::TemporaryDirectory folder_;
  std::mutex mutex_;
  std::vector<std::string> seen_;
  int refused_ = 0;
  HttpReply refusal_{401, R"({"type":"about:blank","title":"Token refused","status":401})"};
  HttpTestServer server_{[this](const HttpRequest& request) { return answer(request); }};
};

TEST_F(ClientOptionsTest, TheEnvironmentSaysWhatIsLeftOpen) {
  EXPECT_EQ(with_environment({.url = "u"}).token_file, "");
  set("GNOMON_TOKEN", "from-variable");
  EXPECT_EQ(with_environment({.url = "u"}).token, "from-variable");
  set("GNOMON_TOKEN_FILE", "/token");
  EXPECT_EQ(with_environment({.url = "u"}).token_file, "/token") << "a file is stronger";
  EXPECT_EQ(with_environment({.url = "u"}).token, "");
  EXPECT_EQ(with_environment({.url = "u", .token_file = "mine"}).token_file, "mine");
  set("GNOMON_TOKEN_FILE", "");
  EXPECT_EQ(with_environment({.url = "u", .token_file = "mine"}).token, "");
  set("GNOMON_CA_FILE", "/ca");
  set("GNOMON_CERTIFICATE_FILE", "/certificate");
  set("GNOMON_KEY_FILE", "/key");
  const ClientOptions all = with_environment({.url = "u"});
  EXPECT_EQ(all.ca_file + all.certificate_file + all.key_file, "/ca/certificate/key");
  const ClientOptions own = with_environment({.url = "u", .certificate_file = "c"});
  EXPECT_EQ(own.key_file, "") << "half a pair of another place is no pair";
}

TEST_F(ClientOptionsTest, ATokenGoesWithEachRequest) {
  HttpClient client({.url = server_.url(), .token_file = token_file("abc.DEF-1\r\nsecond line\n")});
  client.checked("GET", "/");
  client.checked("GET", "/");
  HttpClient direct({.url = server_.url(), .token = "xyz"});
  direct.checked("GET", "/");
  HttpClient none(server_.url());
  none.checked("GET", "/");
  EXPECT_THAT(seen(), ElementsAre("Bearer abc.DEF-1", "Bearer abc.DEF-1", "Bearer xyz", ""));
}

TEST_F(ClientOptionsTest, ATokenThatWasReplacedIsUsedOnceTheOldOneIsRefused) {
  refused_ = 1;
  HttpClient client({.url = server_.url(), .token_file = token_file("old")});
  token_file("new");
  try {
    ClientOptions before{.url = server_.url(), .token = "old"};
    HttpClient(before).checked("GET", "/");
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_TRUE(error.refuses_token());
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--token-file"), HasSubstr("GNOMON_TOKEN_FILE"),
                                    Not(HasSubstr("old"))));
  }
  client.checked("GET", "/");
  refused_ = 3;
  token_file("newest");
  EXPECT_EQ(client.request("GET", "/").status, 401) << "on the connection there is";
  client.checked("GET", "/");
  EXPECT_THAT(seen(), ElementsAre("Bearer old", "Bearer new", "Bearer new", "Bearer newest"));
  EXPECT_EQ(server_.connections(), 3) << "a token that was refused ends a connection";
}

TEST_F(ClientOptionsTest, EachConnectionHasTheTokenThatThereIsThen) {
  HttpClient client({.url = server_.url(), .token_file = token_file("old")});
  client.checked("GET", "/");
  token_file("new");
  client.checked("GET", "/");
  server_.stop();
  server_.start();
  client.checked("GET", "/");
  EXPECT_THAT(seen(), ElementsAre("Bearer old", "Bearer old", "Bearer new"));
}

TEST_F(ClientOptionsTest, ATokenFileThatWentAwayIsNamedAndWaitedFor) {
  refused_ = 1;
  HttpClient client({.url = server_.url(), .token_file = token_file("one")});
  client.request("GET", "/");
  std::filesystem::remove(folder_ / "token");
  try {
    client.request("GET", "/");
    FAIL();
  } catch (const ConnectionError& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder_ / "token").string()));
  }
  token_file("two");
  EXPECT_EQ(client.request("GET", "/").status, 200);
}

TEST_F(ClientOptionsTest, ATokenNeverGoesInTheClearToAnotherMachine) {
  const std::string file = token_file("secret");
  for (const char* url : {"http://10.0.0.1:7717", "http://gnomon.example", "http://[2001:db8::1]",
                          "http://localhost.example", "http://128.0.0.1"}) {
    EXPECT_THAT(refusal({.url = url, .token_file = file}),
                AllOf(HasSubstr("https://"), HasSubstr(url), Not(HasSubstr("secret"))));
    EXPECT_NE(refusal({.url = url, .token = "secret"}), "");
    EXPECT_EQ(refusal({.url = url}), "") << "nothing to hide";
  }
  for (const char* url : {"http://127.0.0.1:7717", "http://127.1.2.3", "http://localhost:1",
                          "http://[::1]:7717", "https://gnomon.example"}) {
    EXPECT_EQ(refusal({.url = url, .token_file = file}), "") << url;
  }
}

TEST_F(ClientOptionsTest, WhatIsNoTokenIsRefusedAndNotShown) {
  for (const char* text : {"", "\nsecret\n", "sec ret\n", "sec\tret", "sécret", "secret\r\r\n"}) {
    EXPECT_THAT(refusal({.url = server_.url(), .token_file = token_file(text)}),
                AllOf(HasSubstr("token_file = " + (folder_ / "token").string()),
                      Not(HasSubstr("ret\n")), Not(HasSubstr("secret"))));
  }
  EXPECT_THAT(refusal({.url = server_.url(), .token = "my secret"}),
              AllOf(HasSubstr("token"), Not(HasSubstr("secret"))));
  EXPECT_THAT(refusal({.url = server_.url(), .token_file = "/absent/token"}),
              HasSubstr("/absent/token"));
  EXPECT_THAT(refusal({.url = server_.url(), .token_file = "/dev/zero"}),
              HasSubstr("/dev/zero: it is a device"));
  EXPECT_THAT(refusal({.url = "https://user:secret@host"}), Not(HasSubstr("secret")));
}

TEST_F(ClientOptionsTest, FilesOfTlsAreLookedAtBeforeAnythingIsSent) {
  const std::string text = token_file("no certificate");
  EXPECT_THAT(refusal({.url = "https://host", .ca_file = text}), HasSubstr("ca_file = " + text));
  EXPECT_THAT(refusal({.url = "https://host", .certificate_file = text}), HasSubstr("key_file"));
  EXPECT_THAT(refusal({.url = "https://host", .key_file = text}), HasSubstr("certificate_file"));
  EXPECT_THAT(refusal({.url = "https://host", .certificate_file = text, .key_file = text}),
              HasSubstr("certificate_file = " + text));
}

TEST_F(ClientOptionsTest, RetryAfterIsTold) {
  refused_ = 2;
  refusal_ = {.status = 429, .body = "{}", .headers = {{"retry-after", "7"}}};
  HttpClient client(server_.url());
  EXPECT_EQ(client.request("GET", "/").retry_after, 7);
  try {
    client.checked("GET", "/");
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.retry_after(), 7);
    EXPECT_EQ(asked_pause(error), std::chrono::seconds(7));
  }
  EXPECT_EQ(client.request("GET", "/").retry_after, 0);
  EXPECT_EQ(asked_pause(ApiError(503, "", "", 100'000)), std::chrono::seconds(60));
  EXPECT_EQ(asked_pause(ConnectionError("")), std::chrono::seconds(0));
}

TEST(Backoff, WaitsAtLeastAsLongAsItIsAskedTo) {
  Backoff backoff(std::chrono::milliseconds(10), std::chrono::milliseconds(40), 7);
  for (int i = 0; i < 50; ++i) {
    const auto time = backoff.next(std::chrono::milliseconds(400));
    EXPECT_GE(time.count(), 400);
    EXPECT_LE(time.count(), 500);
  }
  EXPECT_LE(backoff.next().count(), 40);
}

TEST(AsOption, NamesTheOptionOfTheCommandLine) {
  const auto key = [](const char* name) {
    return as_option(ConfigError("", 0, name, "v", "a"), "--url").key();
  };
  EXPECT_EQ(key("controller"), "--url");
  EXPECT_EQ(key("certificate_file"), "--certificate-file");
  EXPECT_EQ(key("token"), "GNOMON_TOKEN");
  EXPECT_EQ(key("--device"), "--device");
}

}  // namespace
}  // namespace gnomon
