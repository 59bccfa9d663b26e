// What is told of what happens: names, severities, what begins and ends.
#include "controller/notify/alert.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <bit>
#include <regex>
#include <set>

#include "base/files.h"
#include "controller/notify/receiver.h"
#include "tests/support/words.h"

namespace gnomon::notify {
namespace {

using ::testing::HasSubstr;

const Subject kSubject{3, "demo", "36199_0", "enforce"};

decide::RecordDecision decision(const std::string& kind, const std::string& action = "none") {
  decide::RecordDecision made;
  made.decision = 17;
  made.kind = test::any_word(kind);
  made.verdict = "none";
  made.action = test::any_word(action);
  made.step = 1200;
  made.window = 4;
  made.sites = {"layers.3.attn.qkv", "lm_head"};
  made.sentence = "The gap is 2.1%.";
  return made;
}

TEST(AlertTest, ADecisionIsOneAlertOfItsOwn) {
  const Alert alert = decision_alert(kSubject, decision("alarm"), 1.5e9);
  EXPECT_EQ(alert.labels.at("alertname"), "GnomonAlarm");
  EXPECT_EQ(alert.labels.at("run"), "demo/36199_0") << "as the metrics name it";
  EXPECT_EQ(alert.labels.at("run_id"), "run-3");
  EXPECT_EQ(alert.labels.at("job_id"), "36199_0");
  EXPECT_EQ(alert.labels.at("severity"), "warning");
  EXPECT_EQ(alert.labels.at("decision"), "17");
  EXPECT_EQ(alert.annotations.at("description"), "The gap is 2.1%.");
  EXPECT_EQ(alert.annotations.at("summary"), "demo/36199_0: an alarm at step 1200");
  EXPECT_EQ(alert.annotations.at("mode"), "enforce");
  EXPECT_EQ(alert.annotations.at("enforced"), "false");
  EXPECT_EQ(alert.annotations.at("sites"), "layers.3.attn.qkv, lm_head");
  EXPECT_FALSE(alert.lasting);
  EXPECT_EQ(alert.starts_at, 1.5e9);
}

TEST(AlertTest, WhatStopsTheRunIsCriticalAndWhatIsOnlySaidIsNot) {
  const auto severity = [](const std::string& kind, const std::string& action) {
    return decision_alert(kSubject, decision(kind, action), 1).severity;
  };
  EXPECT_EQ(severity("action", "hold"), Severity::kCritical);
  EXPECT_EQ(severity("action", "rollback"), Severity::kWarning);
  EXPECT_EQ(severity("return", "return"), Severity::kInfo);
  EXPECT_EQ(severity("cadence", "none"), Severity::kInfo);
  EXPECT_EQ(severity("sentinel", "none"), Severity::kInfo);
  EXPECT_EQ(severity("health", "none"), Severity::kWarning);
  const auto of_notice = [](const char* kind) {
    TrainerNotice notice;
    notice.kind = TrainerNoticeKind::on_record(kind);
    return notice_alert(kSubject, notice, 1, 1).severity;
  };
  EXPECT_EQ(of_notice("gradient_mismatch"), Severity::kCritical);
  EXPECT_EQ(of_notice("data_mismatch"), Severity::kWarning);
  EXPECT_EQ(ended_alert(kSubject, {"failed", 10}, 1, 1).severity, Severity::kCritical);
  EXPECT_EQ(ended_alert(kSubject, {"completed", 10}, 1, 1).severity, Severity::kInfo);
}

TEST(AlertTest, ALabelWithoutAValueIsLeftOut) {
  const Alert alert = decision_alert({3, "demo", "", "observe"}, decision("alarm"), 1);
  EXPECT_FALSE(alert.labels.contains("job_id"));
}

TEST(AlertTest, TheLedgerGivesBackWhatItWasGiven) {
  Alert alert = decision_alert(kSubject, decision("verdict"), 1732298765.123);
  alert.annotations["description"] = "\"quoted\"\n\xC3\xA4 \x01";
  alert.lasting = true;
  alert.ends_at = 1732298766.25;
  EXPECT_EQ(alert_from_json(alert_to_json(alert)), alert);
}

TEST(AlertTest, ConditionsHoldAsTheStateSays) {
  decide::State state;
  EXPECT_EQ(conditions_that_hold(state), 0u);
  state.investigation.emplace();
  EXPECT_EQ(conditions_that_hold(state), kInvestigation);
  state.containment.emplace().rung = "bf16";
  EXPECT_EQ(conditions_that_hold(state), kInvestigation | kFallback);
  state.investigation.reset();
  state.containment->rung = "hold";
  state.paused = true;
  EXPECT_EQ(conditions_that_hold(state), kHeld) << "a hold pauses the run: that is told once";
  state.containment.reset();
  EXPECT_EQ(conditions_that_hold(state), kPaused);
  state.paused = false;
  state.directive.emplace().silence_recorded = true;
  EXPECT_EQ(conditions_that_hold(state), kSilent);
  state.directive->steps_since = true;
  EXPECT_EQ(conditions_that_hold(state), 0u);
  state.directive.reset();
  state.fault_reported = true;
  state.watch.instrument.broken = true;
  EXPECT_EQ(conditions_that_hold(state), kUnheeded | kBrokenInstrument);
  state.ended = true;
  EXPECT_EQ(conditions_that_hold(state), 0u) << "what has ended stands in nobody's way";
}

TEST(AlertTest, EachConditionHasWordsAndTheSameLabelsEachTime) {
  decide::State state;
  for (size_t i = 0; i < kConditionKinds.size(); ++i) {
    const auto condition = static_cast<Condition>(1u << i);
    const Alert alert = condition_alert(kSubject, condition, state, 5);
    EXPECT_EQ(alert.labels.at("alertname"), kConditionKinds[i].alertname);
    EXPECT_FALSE(alert.annotations.at("description").empty());
    EXPECT_TRUE(alert.lasting);
    EXPECT_EQ(alert.labels, condition_alert(kSubject, condition, state, 99).labels);
  }
}

// Everything the configuration may name stands in the document, with its alert's name.
TEST(AlertTest, TheDocumentHasEveryKindAndNoOther) {
  const std::string document = read_file(GNOMON_NOTIFICATIONS_DOCUMENT);
  std::set<std::string> documented;
  const std::regex row("\\| `([a-z_]+)` \\| `(Gnomon[A-Za-z]+)` \\|");
  for (std::sregex_iterator at(document.begin(), document.end(), row), end; at != end; ++at) {
    documented.insert((*at)[1].str() + " " + (*at)[2].str());
  }
  std::set<std::string> known;
  const auto add = [&](const auto& kinds) {
    for (const Kind& kind : kinds) known.insert(fmt::format("{} {}", kind.name, kind.alertname));
  };
  add(kDecisionKinds);
  add(kMomentKinds);
  add(kConditionKinds);
  EXPECT_EQ(documented, known);
  EXPECT_EQ(known.size() + 1, kind_words().size()) << "*";
}

TEST(ReceiverTest, WantsByKindSeverityAndRun) {
  const Alert alarm = decision_alert(kSubject, decision("alarm"), 1);
  Receiver receiver;
  EXPECT_TRUE(receiver.wants(alarm));
  receiver.kinds = {"verdict", "alarm"};
  EXPECT_TRUE(receiver.wants(alarm));
  receiver.kinds = {"verdict"};
  EXPECT_FALSE(receiver.wants(alarm));
  receiver.kinds = {"*"};
  receiver.minimum_severity = "warning";
  EXPECT_TRUE(receiver.wants(alarm));
  receiver.minimum_severity = "critical";
  EXPECT_FALSE(receiver.wants(alarm));
  receiver.minimum_severity = "info";
  for (const char* glob : {"demo", "dem*", "demo/36199_*", "*"}) {
    receiver.runs = {"other", glob};
    EXPECT_TRUE(receiver.wants(alarm)) << glob;
  }
  for (const char* glob : {"dem", "demo/1", "*/37*"}) {
    receiver.runs = {glob};
    EXPECT_FALSE(receiver.wants(alarm)) << glob;
  }
}

}  // namespace
}  // namespace gnomon::notify
