// Which overrides make sense when, and the contracts of deadlines and numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>

#include "base/errors.h"
#include "controller/decide/decide.h"
#include "protocol/json.h"
#include "tests/support/words.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kPlan = "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n";

class OverrideTest : public ::testing::Test {
 protected:
  void SetUp() override {
    handle(RunRegisteredEvent{"run", kPlan, {"a", "b"}, 1, 10, 1000, 7, 4});
    handle(AttemptStarted{1, 0, "start", 1});
  }
  Outcome& handle(const Event& event) {
    last_ = decide(std::move(last_.state), event, policy_, now_);
    return last_;
  }
  static OperatorOverride asked(const std::string& kind, double expires_at = 0) {
    OperatorOverride order{test::any_word(kind), "", "", "anna", "because", expires_at};
    if (kind == "set_plan") order.plan = kPlan;
    if (kind == "mode") order.mode = "observe";
    return order;
  }
  std::string why(const std::string& kind) const { return why_not(last_.state, asked(kind)); }
  template <class Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Effect& effect : last_.effects) {
      if (const auto* kind = std::get_if<Kind>(&effect)) found.push_back(*kind);
    }
    return found;
  }

  Policy policy_;
  Outcome last_;
  double now_ = 1000;
};

TEST_F(OverrideTest, DirectivesAndPlansAreNumberedAboveWhatTheTrainerHasHad) {
  handle(asked("set_plan", 2000));
  ASSERT_THAT(all<IssueDirective>(), SizeIs(1));
  EXPECT_EQ(all<IssueDirective>()[0].number, 8);
  EXPECT_EQ(all<IssueDirective>()[0].plan_version, 5);
  handle(RunRegisteredEvent{"run", kPlan, {"a", "b"}, 1, 10, 1000, 20, 30});
  handle(asked("checkpoint_now"));
  EXPECT_EQ(all<IssueDirective>()[0].number, 21) << "a trainer that knows more than the ledger";
}

TEST_F(OverrideTest, APlanThatOnlyTheLostLedgerKnewIsSpokenOfOnce) {
  handle(StepReported{1, 1, 3, 2.0, 1.0});
  ASSERT_THAT(all<RecordDecision>(), SizeIs(1));
  EXPECT_THAT(all<RecordDecision>()[0].sentence, HasSubstr("plan 3"));
  handle(StepReported{1, 2, 3, 2.0, 1.0});
  EXPECT_THAT(all<RecordDecision>(), IsEmpty());
  handle(AttemptStarted{2, 0, "restart", 3});
  EXPECT_THAT(all<RecordDecision>(), IsEmpty());
}

TEST_F(OverrideTest, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  EXPECT_THAT(why("resume"), HasSubstr("not paused"));
  EXPECT_THAT(why("pray"), HasSubstr("\"pray\""));
  OperatorOverride order = asked("set_plan", 2000);
  order.plan.clear();
  EXPECT_THAT(why_not(last_.state, order), HasSubstr("plan is missing"));
  order = asked("mode", 2000);
  order.mode = test::any_word("sleep");
  EXPECT_THAT(why_not(last_.state, order), HasSubstr("\"sleep\""));
  order = asked("silence", std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(why_not(last_.state, order), HasSubstr("makes no sense"));
  order = asked("pause");
  order.owner.clear();
  EXPECT_THAT(why_not(last_.state, order), HasSubstr("owner"));
  order.owner = "anna";
  order.reason.clear();
  EXPECT_THAT(why_not(last_.state, order), HasSubstr("reason"));
  const std::string before = state_to_json(last_.state);
  handle(asked("resume"));
  EXPECT_THAT(last_.effects, IsEmpty());
  EXPECT_THAT(last_.reason, HasSubstr("not paused"));
  EXPECT_EQ(state_to_json(last_.state), before);
  EXPECT_THAT(why_not(State(), asked("pause")), HasSubstr("not registered"));
  State registered;
  registered.registered = true;
  EXPECT_THAT(why_not(registered, asked("pause")), HasSubstr("no attempt"));
  EXPECT_EQ(why_not(registered, asked("silence", 2000)), "");
  handle(RunEnded{"completed", 5});
  EXPECT_THAT(why("pause"), HasSubstr("ended"));
}

TEST_F(OverrideTest, APausedRunIsNotPausedAgainAndARunningOneNotResumed) {
  handle(asked("pause"));
  EXPECT_THAT(why("pause"), HasSubstr("paused already"));
  EXPECT_EQ(why("resume"), "") << "before the trainer has answered";
  handle(DirectiveChanged{8, "applied", 1, 5, ""});
  EXPECT_THAT(why("pause"), HasSubstr("paused already"));
  handle(asked("resume"));
  EXPECT_THAT(why("resume"), HasSubstr("resume already"));
  EXPECT_EQ(why("pause"), "");
  handle(DirectiveChanged{9, "applied", 1, 5, ""});
  EXPECT_THAT(why("resume"), HasSubstr("not paused"));
  handle(asked("pause"));
  handle(DirectiveChanged{10, "applied", 1, 5, ""});
  handle(StepReported{1, 6, 1, 2.0, 1.0});
  EXPECT_EQ(why("pause"), "") << "a trainer that takes a step is not paused";
}

TEST_F(OverrideTest, AStandingOrderIsReplacedByTheNextAndHeardOnce) {
  handle(asked("silence", 2000));
  EXPECT_THAT(all<RecordDecision>(), SizeIs(1));
  handle(asked("silence", 2000));
  EXPECT_THAT(last_.effects, IsEmpty());
  handle(asked("silence", 3000));
  EXPECT_EQ(next_deadline(last_.state), 3000);
  now_ = 3000;
  handle(Tick{});
  EXPECT_THAT(all<RecordDecision>(), SizeIs(1));
  EXPECT_TRUE(std::isinf(next_deadline(last_.state)));
}

TEST_F(OverrideTest, ANewPlanEndsTheOneThatWasNotTakenYet) {
  handle(asked("set_plan", 2000));
  OperatorOverride other = asked("set_plan", 3000);
  other.plan = "[[rule]]\nmatch = \"a\"\ngemms = \"fp8\"\n";
  handle(other);
  ASSERT_THAT(all<EndDirective>(), SizeIs(1));
  EXPECT_EQ(all<EndDirective>()[0].number, 8);
  EXPECT_EQ(all<IssueDirective>()[0].plan_version, 6);
}

TEST_F(OverrideTest, AnOperatorsPlanThatTheTrainerRefusesEndsAndNothingHasToBeUndone) {
  handle(asked("set_plan", 2000));
  handle(DirectiveChanged{8, "rejected", 1, 5, "no memory"});
  EXPECT_THAT(all<IssueDirective>(), IsEmpty());
  EXPECT_FALSE(last_.state.operator_plan.has_value());
  EXPECT_THAT(all<RecordDecision>().back().sentence,
              HasSubstr("did not take the plan set by anna"));
}

TEST_F(OverrideTest, APlanTakenAfterItsTimeIsBelievedAndUndone) {
  handle(asked("set_plan", 1100));
  now_ = 1100;
  handle(Tick{});
  ASSERT_THAT(all<EndDirective>(), SizeIs(1));
  ASSERT_THAT(all<IssueDirective>(), SizeIs(1)) << "whether it was taken is not known";
  EXPECT_EQ(all<IssueDirective>()[0].plan_version, 1);
  handle(DirectiveChanged{9, "applied", 1, 5, ""});
  handle(DirectiveChanged{8, "applied", 1, 6, ""});
  ASSERT_THAT(all<RecordDecision>(), SizeIs(1));
  EXPECT_THAT(all<RecordDecision>()[0].sentence, HasSubstr("had expired"));
  ASSERT_THAT(all<IssueDirective>(), SizeIs(1));
  EXPECT_EQ(all<IssueDirective>()[0].plan_version, 1);
}

TEST_F(OverrideTest, TheDeadlineIsThePolicysAndANewAttemptStartsItAgain) {
  policy_.directives.timeout_seconds = 30;
  handle(asked("pause"));
  EXPECT_EQ(next_deadline(last_.state), 1030);
  handle(StepReported{1, 1, 1, 2.0, 1.0});
  now_ = 1020;
  handle(AttemptStarted{2, 0, "restart", 1});
  EXPECT_EQ(next_deadline(last_.state), 1050);
  now_ = 1050;
  handle(Tick{});
  EXPECT_THAT(all<EndDirective>(), IsEmpty()) << "no step of this attempt yet";
  EXPECT_THAT(all<RecordDecision>(), SizeIs(1));
  handle(StepReported{2, 1, 1, 2.0, 1.0});
  now_ = 1080;
  handle(Tick{});
  EXPECT_THAT(all<EndDirective>(), SizeIs(1));
  EXPECT_TRUE(std::isinf(next_deadline(last_.state)));
}

TEST_F(OverrideTest, AStateOrAnEventThatLacksAMemberOrHasAnotherIsRefusedByName) {
  const std::string whole = state_to_json(last_.state);
  const auto refused = [](const std::string& text) {
    try {
      state_from_json(text);
      return std::string("taken");
    } catch (const JsonError& error) {
      return error.path();
    }
  };
  std::string text = whole;
  const std::string member = "\"watch_from\":0,";
  ASSERT_NE(text.find(member), std::string::npos);
  text.erase(text.find(member), member.size());
  EXPECT_EQ(refused(text), "watch_from");
  text = whole;
  text.insert(1, "\"unheard_of\":1,");
  EXPECT_EQ(refused(text), "unheard_of");
  EXPECT_THROW(event_from_json("directive_changed",
                               R"({"state":"applied","attempt":1,"step":1,"reason":""})"),
               JsonError)
      << "without its number";
}

}  // namespace
}  // namespace gnomon::decide
