// Notices of trainers: what people should know and no decision rests on.
#include <fmt/format.h>

#include "protocol/precision_plan.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class NoticesTest : public ApiTest {
 protected:
  NoticesTest() { trainer.begin(); }
  ReportAck post(const TrainerNotice& notice) {
    return from_json<ReportAck>(
        trainer.client().checked("POST", trainer.path("/notices"), to_json(notice)).body);
  }
  Refused refused_notice(const TrainerNotice& notice) {
    return refused("POST", trainer.path("/notices"), to_json(notice));
  }
  static TrainerNotice failed_checkpoint(int64_t step) {
    return {1, step, "checkpoint_failed", "no space left on the device", "", 0, 7.0};
  }
  static TrainerNotice own_plan(int64_t version) {
    PrecisionPlan plan = PrecisionPlan::bf16();
    plan.version = version;
    return {1, 5, "plan_without_controller", "BF16 until it is back", plan.to_toml(), version, 8.0};
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(NoticesTest, ANoticeIsOnRecordOnceHoweverOftenItIsSent) {
  EXPECT_EQ(post(failed_checkpoint(5)).accepted, 1);
  EXPECT_EQ(post(failed_checkpoint(5)).repeated, 1);
  EXPECT_EQ(post(failed_checkpoint(10)).accepted, 1);
  boost::json::value rows = get(trainer.path("/notices"));
  ASSERT_EQ(rows.as_array().size(), 2u);
  EXPECT_EQ(rows.at(0).at("notice").as_int64(), 1);
  EXPECT_EQ(rows.at(0).at("kind").as_string(), "checkpoint_failed");
  EXPECT_EQ(rows.at(0).at("step").as_int64(), 5);
  EXPECT_EQ(rows.at(0).at("text").as_string(), "no space left on the device");
  EXPECT_EQ(rows.at(0).at("noticed_at").to_number<double>(), 7.0);
  EXPECT_EQ(get(trainer.path("/notices?from=2")).as_array().size(), 1u);
}

TEST_F(NoticesTest, NoticesAreCountedByKindAndGoOnCountingAfterARestart) {
  std::string failed = "gnomon_trainer_notices_total{kind=\"checkpoint_failed\",run=\"test/1\"}";
  EXPECT_EQ(metric(failed), 0);
  EXPECT_EQ(metric("gnomon_trainer_notices_total{kind=\"reports_dropped\",run=\"test/1\"}"), 0);
  post(failed_checkpoint(5));
  post(failed_checkpoint(5));
  EXPECT_EQ(metric(failed), 1);
  daemon.kill();
  daemon.start();
  EXPECT_EQ(metric(failed), 1);
}

TEST_F(NoticesTest, ANoticeIsStreamed) {
  RawConnection stream(daemon.port());
  stream.send("GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stream.read_until("event: run");
  post(failed_checkpoint(5));
  EXPECT_THAT(stream.read_until("no space left"), HasSubstr("event: notice"));
}

TEST_F(NoticesTest, APlanTakenWithoutTheControllerIsAmongThePlans) {
  post(own_plan(7));
  post(own_plan(7));
  boost::json::value plans = get(trainer.path("/plans?from=7"));
  ASSERT_EQ(plans.as_array().size(), 1u);
  EXPECT_EQ(plans.at(0).at("toml").as_string(), own_plan(7).plan);
  StepReport step = test_step(1);
  step.plan_version = 7;
  EXPECT_EQ(trainer.post_steps({{step}}).accepted, 1);
  boost::json::value layers = get(trainer.path("/layers"));
  EXPECT_EQ(layers.at(0).at("fprop").as_string(), "bf16");
}

TEST_F(NoticesTest, AnotherTextUnderAKnownVersionIsKeptFromThePlansAndAudited) {
  post(own_plan(1));
  EXPECT_EQ(get(trainer.path("/notices")).as_array().size(), 1u);
  EXPECT_EQ(get(trainer.path("/plans")).at(0).at("toml").as_string(),
            test_registration().base_plan);
  EXPECT_EQ(get(trainer.path("/audit")).at(0).at("what").as_string(), "conflicting_plan");
}

TEST_F(NoticesTest, WhatIsNoNoticeIsRefused) {
  TrainerNotice notice = failed_checkpoint(5);
  notice.kind = test::any_word("gossip");
  EXPECT_THAT(refused_notice(notice).accepted,
              HasSubstr("\"checkpoint_failed\", \"reports_dropped\""));
  notice = failed_checkpoint(5);
  notice.text = "";
  EXPECT_THAT(refused_notice(notice).detail, HasSubstr("text"));
  notice.text = std::string(16'385, 'x');
  EXPECT_EQ(refused_notice(notice).status, 400);
  notice = failed_checkpoint(-1);
  EXPECT_THAT(refused_notice(notice).detail, HasSubstr("step: found -1"));
  notice = own_plan(7);
  notice.plan = "version = 7\n[[rule]]\nmatch = \"model.layers.9.*\"\nfprop = \"fp8\"\n";
  EXPECT_THAT(refused_notice(notice).detail, HasSubstr("model.layers.9.*"));
  notice.plan = "version = ";
  EXPECT_THAT(refused_notice(notice).detail, HasSubstr("plan:1"));
  notice = own_plan(0);
  EXPECT_THAT(refused_notice(notice).detail, HasSubstr("plan_version is 0"));
  EXPECT_TRUE(get(trainer.path("/notices")).as_array().empty());
  EXPECT_EQ(refused("POST", "/v1/runs/run-99/notices", to_json(failed_checkpoint(1))).status, 404);
  EXPECT_EQ(refused("GET", "/v1/runs/run-99/notices").status, 404);
}

}  // namespace
}  // namespace gnomon
