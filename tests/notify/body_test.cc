// What goes over the wire, and what an answer to it means.
#include "controller/notify/body.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "base/errors.h"
#include "base/files.h"
#include "controller/notify/receiver.h"
#include "controller/notify/retry.h"
#include "tests/support/child_process.h"

namespace gnomon::notify {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

Alert sample() {
  Alert alert;
  alert.kind = "held";
  alert.labels = {{"alertname", "GnomonHeld"}, {"run", "demo/1"}, {"run_id", "run-3"}};
  alert.annotations = {{"summary", "s"}};
  alert.starts_at = 1732298765.125;
  alert.lasting = true;
  return alert;
}

boost::json::object webhook(const Alert& alert) {
  return boost::json::parse(webhook_body(alert, "oncall", "abc", "https://g.example/")).as_object();
}

std::string text(const boost::json::value& value) { return std::string(value.as_string()); }

TEST(BodyTest, TimesAreThoseOfGo) {
  EXPECT_EQ(rfc3339(1732298765.125), "2024-11-22T18:06:05.125Z");
  EXPECT_EQ(rfc3339(1732298765.5), "2024-11-22T18:06:05.5Z");
  EXPECT_EQ(rfc3339(1732298760), "2024-11-22T18:06:00Z");
  EXPECT_EQ(rfc3339(0), "0001-01-01T00:00:00Z");
}

// alertmanager_test.cc compares them with a real one's.
TEST(BodyTest, FingerprintsAreThoseOfAlertmanager) {
  EXPECT_EQ(fingerprint({}), "cbf29ce484222325");
  EXPECT_EQ(fingerprint({{"alertname", "GnomonHeld"}, {"run", "demo/1"}}), "d93224bf102510f5");
}

TEST(BodyTest, WhatBeginsAndEndsFiresAndResolvesUnderOneFingerprint) {
  Alert alert = sample();
  const boost::json::object firing = webhook(alert);
  EXPECT_EQ(text(firing.at("version")), "4");
  EXPECT_EQ(text(firing.at("status")), "firing");
  EXPECT_EQ(text(firing.at("receiver")), "oncall");
  EXPECT_EQ(text(firing.at("groupKey")), "{}:{alertname=\"GnomonHeld\", run=\"demo/1\"}");
  const boost::json::object one = firing.at("alerts").at(0).as_object();
  EXPECT_EQ(text(one.at("endsAt")), "0001-01-01T00:00:00Z");
  EXPECT_EQ(text(one.at("generatorURL")), "https://g.example/#run-3");
  EXPECT_EQ(text(one.at("annotations").at("delivery")), "abc");
  alert.ends_at = alert.starts_at + 60;
  const boost::json::object resolved = webhook(alert);
  EXPECT_EQ(text(resolved.at("status")), "resolved");
  EXPECT_EQ(text(resolved.at("alerts").at(0).at("status")), "resolved");
  EXPECT_EQ(text(resolved.at("alerts").at(0).at("startsAt")), text(one.at("startsAt")));
  EXPECT_EQ(text(resolved.at("alerts").at(0).at("endsAt")), rfc3339(alert.ends_at));
  EXPECT_EQ(text(resolved.at("alerts").at(0).at("fingerprint")), text(one.at("fingerprint")));
}

TEST(BodyTest, AMomentFiresAndIsSoonOver) {
  Alert alert = sample();
  alert.lasting = false;
  const boost::json::object body = webhook(alert);
  EXPECT_EQ(text(body.at("status")), "firing");
  EXPECT_EQ(text(body.at("alerts").at(0).at("endsAt")), rfc3339(alert.starts_at + kHoldSeconds));
}

// The example of the document, with what gnomond sends.
TEST(SignatureTest, TheDocumentsExampleTakesItAndNothingElse) {
  const std::string document = read_file(GNOMON_NOTIFICATIONS_DOCUMENT);
  const std::string fence = "```python\n";
  const size_t begin = document.find(fence);
  ASSERT_NE(begin, std::string::npos);
  const size_t end = document.find("```", begin + fence.size());
  const std::string example = document.substr(begin + fence.size(), end - begin - fence.size());
  const std::string script =
      example +
      "\nimport sys\n"
      "sys.exit(0 if is_genuine(sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode()) else 3)\n";
  const auto verdict = [&](const std::string& header, const std::string& body,
                           const std::string& key) {
    return test::run_to_end({"/usr/bin/env", "python3", "-c", script, header, body, key}).status;
  };
  const auto now = static_cast<int64_t>(std::time(nullptr));
  const std::string body = R"({"version":"4"})";
  EXPECT_EQ(verdict(signature(body, now, {"key"}), body, "key"), 0);
  EXPECT_EQ(verdict(signature(body, now, {"new", "key"}), body, "key"), 0) << "while keys change";
  EXPECT_EQ(verdict(signature(body, now, {"other"}), body, "key"), 3);
  EXPECT_EQ(verdict(signature(body, now, {"key"}), body + " ", "key"), 3);
  EXPECT_EQ(verdict(signature(body, now - 3600, {"key"}), body, "key"), 3) << "sent again later";
}

TEST(RetryTest, AnAnswerSaysWhetherToComeAgain) {
  for (const int status : {200, 201, 202, 204, 299}) EXPECT_EQ(fate_of(status), Fate::kDelivered);
  for (const int status : {0, 408, 425, 429, 500, 502, 503, 504}) {
    EXPECT_EQ(fate_of(status), Fate::kAgain) << status;
  }
  for (const int status : {301, 302, 307, 400, 401, 404, 410, 413}) {
    EXPECT_EQ(fate_of(status), Fate::kRefused) << status;
  }
}

TEST(RetryTest, WaitsGrowUpToTheLongestAndBeginAnewAfterASuccess) {
  Pace pace(1, 8);
  EXPECT_THAT(pace.failed(0), AllOf(Ge(0.5), Le(1)));
  EXPECT_THAT(pace.failed(0), AllOf(Ge(1), Le(2)));
  EXPECT_THAT(pace.failed(30), 30) << "as the receiver asks";
  EXPECT_THAT(pace.failed(1e9), kRetryAfterMaxSeconds);
  for (int i = 0; i < 50; ++i) EXPECT_THAT(pace.failed(-5), AllOf(Ge(4), Le(8)));
  EXPECT_TRUE(pace.failing());
  pace.succeeded();
  EXPECT_FALSE(pace.failing());
  EXPECT_THAT(pace.failed(0), Le(1));
  EXPECT_THAT(wait_after(1, 1, 8), AllOf(Ge(0.5), Le(1)));
  EXPECT_THAT(wait_after(1'000'000'000, 1, 8), AllOf(Ge(4), Le(8)));
}

class ReceiverFileTest : public ::testing::Test {
 protected:
  std::vector<Receiver> read(const std::string& text) {
    TomlTable root = TomlTable::parse(text, folder / "gnomond.toml");
    std::vector<Receiver> receivers;
    for (TomlTable& table : root.tables("notify")) {
      read_settings(table, receivers.emplace_back());
    }
    check_receivers(receivers, root);
    return receivers;
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  static std::string with(const std::string& line) {
    return "[[notify]]\nname = \"a\"\nurl = \"http://h/\"\n" + line + "\n";
  }
  test::TemporaryDirectory folder;
};

TEST_F(ReceiverFileTest, SecretsAreReadWithTheFileAndRelativeToIt) {
  write_file_atomically(folder / "key", "new\r\nold\n");
  write_file_atomically(folder / "word", "Bearer abc\n");
  const Receiver receiver =
      read(with("secret_file = \"key\"\nauthorization_file = \"word\"")).front();
  EXPECT_THAT(receiver.secrets, ElementsAre("new", "old"));
  EXPECT_EQ(receiver.authorization, "Bearer abc");
}

TEST_F(ReceiverFileTest, MistakesAreNamedWithTheirLineAndSecretsAreNot) {
  EXPECT_EQ(refusal(with("")), "accepted");
  EXPECT_THAT(refusal("[[notify]]\nurl = \"http://h/\"\n"), HasSubstr("name"));
  for (const char* url : {"", "ftp://h/", "h/x", "http://", "http:///x", "http://u:p@h/",
                          "http://h/#x", "http://h/ x"}) {
    EXPECT_THAT(refusal(fmt::format("[[notify]]\nname = \"a\"\nurl = \"{}\"\n", url)),
                AllOf(HasSubstr("gnomond.toml:"), HasSubstr("https://HOST")))
        << url;
  }
  EXPECT_THAT(refusal(with("kinds = [\"alarm\", \"rescue\"]")),
              AllOf(HasSubstr("gnomond.toml:4"), HasSubstr("rescue"), HasSubstr("investigation")));
  EXPECT_THAT(refusal(with("runs = [\"{a,b}\"]")), HasSubstr("globs"));
  EXPECT_THAT(refusal(with("secret_file = \"none\"")),
              AllOf(HasSubstr("secret_file"), HasSubstr("can be read")));
  EXPECT_THAT(refusal(with("ca_file = \"none\"")), HasSubstr("ca_file"));
  EXPECT_THAT(refusal(with("retry_longest_seconds = 0.5")), HasSubstr("retry_first_seconds"));
  EXPECT_THAT(refusal(with("timeout = 3")), HasSubstr("timeout_seconds"));
  EXPECT_THAT(refusal(with("") + with("")), HasSubstr("another name"));
  write_file_atomically(folder / "three", "hush1\nhush2\nhush3\n");
  EXPECT_THAT(refusal(with("secret_file = \"three\"")),
              AllOf(HasSubstr("one or two lines"), ::testing::Not(HasSubstr("hush"))));
  write_file_atomically(folder / "empty", "\n");
  EXPECT_THAT(refusal(with("authorization_file = \"empty\"")), HasSubstr("one line"));
}

}  // namespace
}  // namespace gnomon::notify
