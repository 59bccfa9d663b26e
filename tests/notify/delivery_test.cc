// Notifications of a real daemon: nothing is lost when it is killed, and its configuration is read
// again.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <set>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/controller/fake_clients.h"
#include "tests/notify/webhook_receiver.h"
#include "tests/support/daemon_process.h"

namespace gnomon::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class NotifyingDaemonTest : public ::testing::Test {
 protected:
  void configure(const std::string& text) { write_file_atomically(config, text); }
  static std::string receiver(const std::string& name, const WebhookReceiver& hook,
                              const std::string& more = {}) {
    return fmt::format(
        "[[notify]]\nname = \"{}\"\nurl = \"{}\"\nretry_first_seconds = 0.02\n"
        "retry_longest_seconds = 0.1\n{}\n",
        name, hook.url(), more);
  }
  void start() {
    daemon = std::make_unique<DaemonProcess>(std::vector<std::string>{"--config", config.string()},
                                             test_policy());
    daemon->start();
  }
  void notice(FakeTrainer& trainer, int number) {
    TrainerNotice notice;
    notice.kind = "reports_dropped";
    notice.attempt = 1;
    notice.text = fmt::format("{}", number);
    notice.time = number;
    trainer.client().checked("POST", trainer.path("/notices"), to_json(notice));
  }
  boost::json::array waiting() {
    return boost::json::parse(daemon->client().checked("GET", "/v1/notifications").body).as_array();
  }

  TemporaryDirectory folder;
  std::filesystem::path config = folder / "gnomond.toml";
  std::unique_ptr<DaemonProcess> daemon;
};

TEST_F(NotifyingDaemonTest, KilledAgainAndAgainItTellsEverythingInOrder) {
  // Slow to take and often failing, so that a kill comes at every moment of a delivery.
  WebhookReceiver hook([](const Delivery&, size_t before) {
    return HttpReply{.status = before % 4 == 1 ? 500 : 200, .close_unanswered = before % 9 == 5};
  });
  configure(receiver("a", hook, "kinds = [\"reports_dropped\"]"));
  start();
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  constexpr int kNotices = 40;
  for (int i = 1; i <= kNotices; ++i) {
    notice(trainer, i);
    if (i % 8 == 0) {
      daemon->kill();
      daemon->start_again();
      trainer.connect(daemon->url());
    }
  }
  EXPECT_TRUE(eventually([&] { return waiting().empty(); }, std::chrono::seconds(20)));
  std::vector<std::string> order;
  std::set<std::string> seen;
  for (const Delivery& delivery : hook.taken()) {
    if (seen.insert(delivery.id()).second) order.push_back(delivery.annotation("description"));
  }
  std::vector<std::string> wanted;
  for (int i = 1; i <= kNotices; ++i) wanted.push_back(fmt::format("{}", i));
  EXPECT_EQ(order, wanted) << "all of them, in order, those that came twice under one name";
  EXPECT_EQ(daemon->stop(), 0);
}

TEST_F(NotifyingDaemonTest, ARunIsToldFromItsBeginningToItsEnd) {
  WebhookReceiver hook;
  configure("external_url = \"https://g.example\"\n" + receiver("a", hook));
  start();
  FakeTrainer trainer(daemon->url());
  FakeVerifier verifier(daemon->url());
  trainer.begin();
  trainer.train(1, 10);
  provoke_directive(trainer, verifier);
  ASSERT_TRUE(eventually([&] { return waiting().empty(); }, std::chrono::seconds(20)));
  std::vector<std::string> sent;
  for (const Delivery& delivery : hook.taken()) {
    sent.push_back(delivery.annotation("kind") + " " +
                   std::string(delivery.body.at("status").as_string()));
  }
  EXPECT_EQ(sent.front(), "attempt firing");
  EXPECT_THAT(sent, Contains("alarm firing"));
  EXPECT_THAT(sent, Contains("verdict firing"));
  EXPECT_THAT(sent, Contains("action firing"));
  EXPECT_THAT(sent, Contains("investigation firing"));
  EXPECT_THAT(sent, Contains("investigation resolved"));
  const boost::json::array decisions = daemon->rows("decisions");
  size_t checked = 0;
  for (const Delivery& delivery : hook.taken()) {
    if (!delivery.alert().at("labels").as_object().contains("decision")) continue;
    const auto number = static_cast<size_t>(std::stoul(delivery.label("decision")));
    EXPECT_EQ(delivery.annotation("description"),
              std::string(decisions.at(number - 1).at("sentence").as_string()));
    ++checked;
  }
  EXPECT_EQ(checked, decisions.size());
  EXPECT_EQ(hook.taken().front().alert().at("generatorURL").as_string(),
            "https://g.example/#run-1");
}

TEST_F(NotifyingDaemonTest, WhatWaitsIsListedAPageAtATimeAndCounted) {
  WebhookReceiver hook([](const Delivery&, size_t) { return HttpReply{503, "no"}; });
  configure(receiver("a", hook));
  start();
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  for (int i = 1; i <= 3; ++i) notice(trainer, i);
  ASSERT_TRUE(eventually([&] {
    const boost::json::array rows = waiting();
    return rows.at(0).at("tries").as_int64() > 0;
  }));
  const boost::json::array rows = waiting();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].at("kind").as_string(), "attempt");
  EXPECT_EQ(rows[0].at("last_error").as_string(), "status 503: no");
  EXPECT_TRUE(rows[1].at("next_try_at").is_null());
  const HttpResponse page = daemon->client().checked("GET", "/v1/notifications?limit=3");
  EXPECT_EQ(boost::json::parse(page.body).as_array().size(), 3u);
  const HttpResponse rest = daemon->client().checked("GET", page.next);
  EXPECT_EQ(boost::json::parse(rest.body).as_array().size(), 1u);
  EXPECT_TRUE(eventually([&] {
    return daemon->client()
               .checked("GET", "/metrics")
               .body.find("gnomon_notifications_waiting{receiver=\"a\"} 4") != std::string::npos;
  }));
  EXPECT_EQ(daemon->stop(), 0);
}

TEST_F(NotifyingDaemonTest, ReceiversAndKeysAreReadAgainAndABadFileChangesNothing) {
  WebhookReceiver first, second;
  const auto reload = [&](const std::string& log_line) {
    daemon->signal(SIGHUP);
    return eventually([&] { return daemon->log().find(log_line) != std::string::npos; });
  };
  write_file_atomically(folder / "key", "sesame-one\n");
  configure(receiver("a", first, "secret_file = \"key\""));
  start();
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  ASSERT_TRUE(first.await_taken(1));
  configure(receiver("a", first, "secret_file = \"gone\""));
  ASSERT_TRUE(reload("the last good one stays"));
  notice(trainer, 1);
  ASSERT_TRUE(first.await_taken(2));
  write_file_atomically(folder / "key", "sesame-two\nsesame-one\n");
  configure(receiver("a", first, "secret_file = \"key\"") + receiver("b", second));
  ASSERT_TRUE(reload("was read again\n"));
  ASSERT_TRUE(eventually([&] {
    return daemon->client()
               .checked("GET", "/metrics")
               .body.find("outcome=\"delivered\",receiver=\"b\"} 0") != std::string::npos;
  }));
  notice(trainer, 2);
  ASSERT_TRUE(first.await_taken(3) && second.await_taken(1));
  const auto keys = [](const Delivery& delivery) {
    const std::string header = delivery.request.headers.at("x-gnomon-signature");
    return std::count(header.begin(), header.end(), ',');
  };
  EXPECT_EQ(keys(first.taken()[1]), 1);
  EXPECT_EQ(keys(first.taken()[2]), 2);
  EXPECT_EQ(second.taken().size(), 1u) << "from now on";
  EXPECT_EQ(daemon->stop(), 0);
  EXPECT_EQ(daemon->log().find("sesame"), std::string::npos);
  EXPECT_EQ(daemon->log().find("/hook"), std::string::npos) << "an address may hold a token";
}

TEST_F(NotifyingDaemonTest, AReceiverThatIsAddedHearsOfWhatLastsAlsoWhenTheDaemonDiesThen) {
  std::atomic<bool> away = true;
  WebhookReceiver first;
  WebhookReceiver second(
      [&away](const Delivery&, size_t) { return HttpReply{.status = away ? 503 : 200}; });
  configure(receiver("a", first));
  start();
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  trainer.client().checked("POST", trainer.path("/overrides"),
                           to_json(OverrideRequest{"pause", "", "", "ann", "to look", 0}));
  trainer.ack(trainer.poll(0).directives.at(0).number, {"applied", 1, 0, "", 1.0});
  const auto lines = [](const WebhookReceiver& hook) {
    std::vector<std::string> sent;
    for (const Delivery& delivery : hook.taken()) {
      sent.push_back(delivery.annotation("kind") + " " +
                     std::string(delivery.body.at("status").as_string()));
    }
    return sent;
  };
  ASSERT_TRUE(
      eventually([&] { return !lines(first).empty() && lines(first).back() == "paused firing"; }));
  ASSERT_TRUE(eventually([&] { return waiting().empty(); })) << "a kill would tell it again";
  const size_t before = lines(first).size();
  configure(receiver("a", first) + receiver("b", second));
  daemon->signal(SIGHUP);
  ASSERT_TRUE(eventually([&] { return !second.all().empty(); })) << "away, and to be told";
  daemon->kill();
  away = false;
  daemon->start_again();
  trainer.connect(daemon->url());
  ASSERT_TRUE(second.await_taken(1));
  EXPECT_EQ(second.taken()[0].label("alertname"), "GnomonPaused");
  EXPECT_EQ(second.taken()[0].alert().at("startsAt"), first.taken().back().alert().at("startsAt"));
  daemon->signal(SIGHUP);
  RunFinished finished;
  finished.outcome = "stopped";
  trainer.client().checked("POST", trainer.path("/finished"), to_json(finished));
  ASSERT_TRUE(eventually([&] { return waiting().empty(); })) << "both have been told";
  EXPECT_THAT(lines(second),
              ::testing::ElementsAre("paused firing", "paused resolved", "ended firing"));
  EXPECT_EQ(lines(first).size(), before + 2) << "it has heard of the beginning before";
  EXPECT_EQ(daemon->stop(), 0);
}

}  // namespace
}  // namespace gnomon::test
