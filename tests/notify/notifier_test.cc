// Delivery to receivers that fail in every way they can.
#include "controller/notify/notifier.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>

#include "controller/notify/body.h"
#include "tests/notify/webhook_receiver.h"
#include "tests/storage/ledger_fixture.h"
#include "tests/support/child_process.h"

namespace gnomon::notify {
namespace {

using test::Delivery;
using test::eventually;
using test::HttpReply;
using test::WebhookReceiver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NotifierTest : public LedgerTest {
 protected:
  NotifierTest() : ledger_(options()) {}

  static Receiver receiver(const std::string& name, const std::string& url) {
    Receiver made;
    made.name = name;
    made.url = url;
    made.retry_first_seconds = 0.02;
    made.retry_longest_seconds = 0.05;
    made.timeout_seconds = 5;
    return made;
  }
  static double wall() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  static double steady() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void start(std::vector<Receiver> receivers) {
    notifier_ = std::make_unique<Notifier>(
        ledger_, outbox_, metrics_, NotifierSettings{std::move(receivers), "https://g.example"},
        [] { return wall(); }, [this] { return wall() + set_by_; }, steady);
  }
  // Messages of a run, numbered from `first`.
  void enqueue(int64_t run, int first, int last) {
    ledger_.write([&](LedgerTransaction& transaction) {
      for (int i = first; i <= last; ++i) {
        decide::RecordDecision decision;
        decision.kind = "alarm";
        decision.decision = i;
        decision.sentence = fmt::format("alarm {}", i);
        const Subject subject{run, fmt::format("r{}", run), "1", "observe"};
        outbox_.enqueue(transaction, run, decision_alert(subject, decision, wall()), wall());
      }
    });
  }
  // "run:decision" of those that were taken, of one run or (0) of all.
  static std::vector<std::string> summaries_of(const std::vector<Delivery>& deliveries,
                                               int64_t run = 0) {
    std::vector<std::string> lines;
    for (const Delivery& delivery : deliveries) {
      if (run != 0 && delivery.label("run_id") != fmt::format("run-{}", run)) continue;
      lines.push_back(delivery.label("run_name") + ":" + delivery.label("decision"));
    }
    return lines;
  }
  bool drains() {
    return eventually([&] { return number(ledger_, "SELECT count(*) FROM outbox") == 0; },
                      std::chrono::seconds(20));
  }
  double counted(const std::string& receiver, const std::string& outcome) {
    const std::string text = metrics_.serialize(0);
    const std::string name = fmt::format(
        "gnomon_notifications_total{{outcome=\"{}\",receiver=\"{}\"}} ", outcome, receiver);
    const size_t at = text.find(name);
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size()));
  }

  std::atomic<double> set_by_ = 0;  // seconds by which somebody set the machine's clock
  Ledger ledger_;
  Metrics metrics_;
  Outbox outbox_{metrics_};
  std::unique_ptr<Notifier> notifier_;
};

TEST_F(NotifierTest, ADeliveredMessageIsSignedCountedAndDeleted) {
  WebhookReceiver hook;
  Receiver signed_one = receiver("a", hook.url());
  signed_one.secrets = {"k1", "k2"};
  signed_one.authorization = "Bearer word";
  start({signed_one});
  EXPECT_EQ(counted("a", "delivered"), 0) << "there before the first message";
  enqueue(1, 1, 3);
  ASSERT_TRUE(hook.await_taken(3));
  EXPECT_TRUE(drains());
  EXPECT_THAT(summaries_of(hook.taken()), ElementsAre("r1:1", "r1:2", "r1:3"));
  EXPECT_TRUE(eventually([&] { return counted("a", "delivered") == 3; }));
  for (const Delivery& delivery : hook.all()) {
    const test::HttpRequest& request = delivery.request;
    EXPECT_EQ(request.headers.at("content-type"), "application/json");
    EXPECT_EQ(request.headers.at("authorization"), "Bearer word");
    EXPECT_EQ(delivery.annotation("delivery"), delivery.id());
    const std::string given = request.headers.at("x-gnomon-signature");
    const int64_t time = std::stoll(given.substr(2));
    EXPECT_EQ(given, signature(request.body, time, {"k1", "k2"}));
    EXPECT_NEAR(static_cast<double>(time), wall(), 30);
    EXPECT_EQ(delivery.body.at("externalURL").as_string(), "https://g.example");
  }
}

TEST_F(NotifierTest, OneThatFailsIsSentAgainUnderTheSameNameAndTheNextOneWaits) {
  WebhookReceiver hook([](const Delivery&, size_t before) {
    return before < 3 ? HttpReply{before == 1 ? 429 : 503} : HttpReply{};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 2);
  ASSERT_TRUE(hook.await_taken(2));
  EXPECT_THAT(summaries_of(hook.all()), ElementsAre("r1:1", "r1:1", "r1:1", "r1:1", "r1:2"));
  EXPECT_EQ(hook.all()[0].id(), hook.all()[3].id());
  EXPECT_NE(hook.all()[3].id(), hook.all()[4].id());
  EXPECT_TRUE(drains());
  EXPECT_TRUE(eventually([&] { return counted("a", "failed") == 3; }));
}

TEST_F(NotifierTest, AClockThatIsSetBackKeepsNoMessageWaiting) {
  WebhookReceiver hook(
      [](const Delivery&, size_t before) { return before < 1 ? HttpReply{503} : HttpReply{}; });
  Receiver slow = receiver("a", hook.url());
  slow.secrets = {"k"};
  slow.retry_first_seconds = slow.retry_longest_seconds = 0.5;
  start({slow});
  enqueue(1, 1, 1);
  ASSERT_TRUE(eventually([&] { return number(ledger_, "SELECT max(tries) FROM outbox") == 1; }));
  set_by_ = -1800;
  ASSERT_TRUE(hook.await_taken(1));
  EXPECT_TRUE(drains());
  const std::string given = hook.all().back().request.headers.at("x-gnomon-signature");
  EXPECT_NEAR(std::stod(given.substr(2)), wall() - 1800, 30) << "the receiver's clock was set too";
}

TEST_F(NotifierTest, AnUndeliverableMessageBlocksOnlyItsRun) {
  WebhookReceiver hook([](const Delivery& delivery, size_t) {
    return delivery.label("run_name") == "r1" ? HttpReply{500, "broken"} : HttpReply{};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 2);
  enqueue(2, 1, 20);
  ASSERT_TRUE(hook.await_taken(20));
  std::vector<std::string> wanted;
  for (int i = 1; i <= 20; ++i) wanted.push_back(fmt::format("r2:{}", i));
  EXPECT_EQ(summaries_of(hook.taken(), 2), wanted);
  EXPECT_TRUE(eventually([&] { return number(ledger_, "SELECT count(*) FROM outbox") == 2; }));
  EXPECT_TRUE(eventually([&] { return number(ledger_, "SELECT max(tries) FROM outbox") > 2; }));
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM outbox WHERE last_error LIKE '%500: broken%'"), 1)
      << "the second one was never sent";
}

TEST_F(NotifierTest, ARejectedMessageIsDroppedAndAudited) {
  WebhookReceiver hook([](const Delivery& delivery, size_t) {
    return delivery.label("decision") == "2" ? HttpReply{400, "what is this"} : HttpReply{};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 3);
  ASSERT_TRUE(hook.await_taken(2));
  EXPECT_THAT(summaries_of(hook.all()), ElementsAre("r1:1", "r1:2", "r1:3"));
  EXPECT_TRUE(drains());
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM audit WHERE what = 'notifications_dropped' AND "
                   "run = 1 AND detail LIKE '%400: what is this%'"),
            1);
  EXPECT_TRUE(eventually([&] { return counted("a", "dropped") == 1; }));
}

TEST_F(NotifierTest, ARedirectIsNotFollowed) {
  WebhookReceiver other;
  WebhookReceiver hook([&](const Delivery&, size_t) {
    return HttpReply{.status = 307, .headers = {{"Location", other.url()}}};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 1);
  EXPECT_TRUE(drains());
  EXPECT_THAT(other.all(), IsEmpty());
  EXPECT_TRUE(eventually([&] { return counted("a", "dropped") == 1; }));
}

TEST_F(NotifierTest, AReceiverThatAsksForTimeIsLeftAlone) {
  std::atomic<double> asked = 0;
  std::atomic<double> came = 0;
  WebhookReceiver hook([&](const Delivery&, size_t before) {
    if (before > 0) {
      if (before == 1) came = steady();
      return HttpReply{};
    }
    asked = steady();
    return HttpReply{.status = 503, .headers = {{"Retry-After", "1"}}};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 1);
  ASSERT_TRUE(eventually([&] { return !hook.all().empty(); }));
  enqueue(2, 1, 1);  // another run does not come earlier
  ASSERT_TRUE(hook.await_taken(2));
  EXPECT_GE(came - asked, 1.0);
}

TEST_F(NotifierTest, AReceiverThatHangsHoldsUpNobodyElseAndEndsByItsTime) {
  WebhookReceiver good;
  WebhookReceiver hanging([&](const Delivery&, size_t before) {
    if (before == 0) hanging.server().hold();
    return HttpReply{};
  });
  Receiver slow = receiver("slow", hanging.url());
  slow.timeout_seconds = 0.5;
  start({slow, receiver("good", good.url())});
  enqueue(1, 1, 3);
  EXPECT_TRUE(good.await_taken(3));
  ASSERT_TRUE(eventually([&] { return hanging.all().size() >= 2; })) << "again after its time";
  EXPECT_TRUE(eventually(
      [&] { return number(ledger_, "SELECT count(*) FROM outbox WHERE receiver = 'slow'") == 0; }));
  EXPECT_THAT(summaries_of(hanging.all()), ElementsAre("r1:1", "r1:1", "r1:2", "r1:3"));
  EXPECT_EQ(counted("slow", "failed"), 1);
  hanging.server().release();
}

TEST_F(NotifierTest, AnUnreachableReceiverGetsItsMessagesLater) {
  WebhookReceiver hook;
  hook.server().stop();
  start({receiver("a", hook.url())});
  enqueue(1, 1, 2);
  enqueue(2, 1, 2);
  EXPECT_TRUE(eventually([&] {
    return number(ledger_, "SELECT count(*) FROM outbox WHERE tries > 0 AND last_error <> ''") > 0;
  }));
  hook.server().start();
  ASSERT_TRUE(hook.await_taken(4));
  EXPECT_THAT(summaries_of(hook.taken(), 1), ElementsAre("r1:1", "r1:2"));
  EXPECT_THAT(summaries_of(hook.taken(), 2), ElementsAre("r2:1", "r2:2"));
}

TEST_F(NotifierTest, MessagesOfManyRunsKeepTheirOrderUnderFailures) {
  WebhookReceiver hook([](const Delivery&, size_t before) {
    return HttpReply{.status = before % 7 == 3 ? 500 : 200, .close_unanswered = before % 5 == 1};
  });
  Receiver eager = receiver("a", hook.url());
  eager.retry_first_seconds = eager.retry_longest_seconds = 0.01;
  start({eager});
  for (int i = 1; i <= 10; ++i) {
    for (int64_t run = 1; run <= 6; ++run) enqueue(run, i, i);
  }
  ASSERT_TRUE(hook.await_taken(60));
  for (int64_t run = 1; run <= 6; ++run) {
    std::vector<std::string> wanted;
    for (int i = 1; i <= 10; ++i) wanted.push_back(fmt::format("r{}:{}", run, i));
    EXPECT_EQ(summaries_of(hook.taken(), run), wanted);
  }
  EXPECT_TRUE(drains());
}

TEST_F(NotifierTest, AMessageThatWaitsTooLongIsDropped) {
  Receiver away = receiver("a", "http://127.0.0.1:1/");
  away.give_up_hours = 0.5 / 3600;
  start({away});
  enqueue(1, 1, 5);
  EXPECT_TRUE(drains());
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM audit WHERE what = 'notifications_dropped' AND "
                   "detail LIKE '5 of a, who has not taken them%'"),
            1);
  EXPECT_TRUE(eventually([&] { return counted("a", "dropped") == 5; }));
}

TEST_F(NotifierTest, OtherReceiversAndKeysAreTakenWhileItRuns) {
  WebhookReceiver first, second;
  Receiver a = receiver("a", first.url());
  a.secrets = {"old"};
  start({a});
  enqueue(1, 1, 1);
  ASSERT_TRUE(first.await_taken(1));
  a.secrets = {"new", "old"};
  notifier_->configure({{a, receiver("b", second.url())}, ""});
  ASSERT_TRUE(eventually([&] { return counted("b", "delivered") == 0; }));
  enqueue(1, 2, 2);
  ASSERT_TRUE(first.await_taken(2) && second.await_taken(1));
  EXPECT_THAT(summaries_of(second.taken()), ElementsAre("r1:2"));
  const test::HttpRequest request = first.taken()[1].request;
  const std::string given = request.headers.at("x-gnomon-signature");
  EXPECT_EQ(given, signature(request.body, std::stoll(given.substr(2)), {"new", "old"}));
  notifier_->configure({{receiver("b", second.url())}, ""});
  ASSERT_TRUE(eventually([&] { return counted("a", "delivered") == -1; })) << "its series go";
  enqueue(1, 3, 3);
  ASSERT_TRUE(second.await_taken(2));
  EXPECT_EQ(first.all().size(), 2u);
}

TEST_F(NotifierTest, AfterAFailureAReloadTriesAtOnce) {
  WebhookReceiver hook(
      [](const Delivery&, size_t before) { return HttpReply{before == 0 ? 500 : 200}; });
  Receiver patient = receiver("a", hook.url());
  patient.retry_first_seconds = patient.retry_longest_seconds = 600;
  start({patient});
  enqueue(1, 1, 1);
  ASSERT_TRUE(eventually([&] { return number(ledger_, "SELECT max(tries) FROM outbox") == 1; }));
  notifier_->configure({{patient}, ""});
  EXPECT_TRUE(hook.await_taken(1));
}

TEST_F(NotifierTest, ItEndsAtOnceAlthoughAReceiverHangsAndTheNextOneGoesOn) {
  WebhookReceiver hook([&](const Delivery&, size_t before) {
    if (before == 0) hook.server().hold();
    return HttpReply{};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 2);
  ASSERT_TRUE(eventually([&] { return hook.all().size() == 1; }));
  const double began = steady();
  notifier_.reset();
  EXPECT_LT(steady() - began, 3);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM outbox"), 2);
  hook.server().release();
  start({receiver("a", hook.url())});
  ASSERT_TRUE(drains());
  EXPECT_THAT(summaries_of(hook.all()), ElementsAre("r1:1", "r1:1", "r1:2"));
}

TEST_F(NotifierTest, AnEndlessAnswerIsAnAnswer) {
  WebhookReceiver hook([](const Delivery&, size_t) {
    return HttpReply{200, std::string(8 << 20, 'x')};
  });
  start({receiver("a", hook.url())});
  enqueue(1, 1, 2);
  EXPECT_TRUE(drains());
  EXPECT_EQ(hook.all().size(), 2u);
}

}  // namespace
}  // namespace gnomon::notify
