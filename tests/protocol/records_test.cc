// Every record, member by member: what is wrong with a message is said once, with the member, the
// value and what is accepted.
#include "protocol/records.h"

#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "protocol/json.h"
#include "tests/support/described.h"

namespace gnomon {
namespace {

namespace json = boost::json;

// A value that the member's rules accept.
template <typename T>
struct Sample {
  static json::value of(const Member& /*member*/) {
    json::object record;
    T::describe([&](const char* name, auto access, const Member& member) {
      using Value = std::remove_cvref_t<std::invoke_result_t<decltype(access), T&>>;
      record[name] = Sample<Value>::of(member);
    });
    return record;
  }
};
template <>
struct Sample<std::string> {
  static json::value of(const Member& member) {
    return json::string(std::max<size_t>(member.text.least, 1), 'a');
  }
};
template <const auto& list>
struct Sample<Word<list>> {
  static json::value of(const Member& /*member*/) { return json::string(list.back()); }
};
template <>
struct Sample<bool> {
  static json::value of(const Member& /*member*/) { return true; }
};
template <>
struct Sample<double> {
  static json::value of(const Member& member) {
    return std::clamp(0.5, member.range.least, member.range.most);
  }
};
template <typename T>
requires std::is_integral_v<T>
struct Sample<T> {
  static json::value of(const Member& member) {
    return static_cast<int64_t>(std::clamp(1.0, member.range.least, member.range.most));
  }
};
template <>
struct Sample<Labels> {
  static json::value of(const Member& /*member*/) { return json::object{{"pool", "night"}}; }
};
template <typename T>
struct Sample<std::optional<T>> : Sample<T> {};
template <typename T>
struct Sample<std::vector<T>> {
  static json::value of(const Member& member) { return json::array{Sample<T>::of(member)}; }
};

// Values that are no such thing, or beyond the rules, with a word for what is wrong.
template <typename T>
void wrong_values(const Member& member, const std::function<void(const char*, json::value)>& give) {
  if constexpr (std::is_same_v<T, std::string>) {
    give("a number", 7);
    if (member.text.most < size_t{1} << 16)
      give("too long", json::string(member.text.most + 1, 'a'));
    if (member.text.least > 0) give("empty", "");
    if (member.text.form != Text::Form::kFree) give("two lines", "a\nb");
  } else if constexpr (kIsWord<T>) {
    give("a number", 7);
    give("a word that is none", "no such word");
  } else if constexpr (std::is_same_v<T, bool>) {
    give("a text", "true");
  } else if constexpr (std::is_arithmetic_v<T>) {
    give("a text", "many");
    give("a list", json::array{1});
    if (std::is_integral_v<T>) give("a fraction", 1.5);
    const bool fits = std::abs(member.range.most) < 1e18;
    if (fits && member.range.least > -1e300)
      give("too small", static_cast<int64_t>(member.range.least) - 1);
    if (fits) give("too large", static_cast<int64_t>(member.range.most) + 1);
    if (std::is_same_v<T, double> && !member.range.nan) give("no number", "NaN");
    if (std::is_same_v<T, double> && !member.range.infinity) give("no end", "Infinity");
  } else {
    give("a number", 7);
  }
}
template <typename T>
struct Inner {
  using Type = T;
};
template <typename T>
struct Inner<std::optional<T>> : Inner<T> {};

template <typename R>
void expect_refused(const json::value& message, const std::string& path, const std::string& why) {
  try {
    from_request<R>(json::serialize(message));
    ADD_FAILURE() << R::kRecord.name << "." << path << ": " << why << " is taken";
  } catch (const JsonError& error) {
    EXPECT_EQ(error.path(), path) << R::kRecord.name << ": " << error.what();
    EXPECT_FALSE(error.accepted().empty()) << error.what();
    if (path.find('[') == std::string::npos) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(path + ": found "));
    }
  }
}

template <typename R>
class RecordsTest : public ::testing::Test {};
template <typename... Records>
using Types = ::testing::Types<Records...>;
using AllRecords =
    Types<Fingerprint, InjectedFault, RunRegistration, RunRegistered, AttemptStart, DeviceHealth,
          StepReport, StepBatch, ReportAck, CheckpointReport, TrainerNotice, RunFinished, Directive,
          DirectiveList, DirectiveAck, StatisticsRow, StatisticsReport, OverrideRequest,
          OverrideAccepted, EndRequest, LeaseRequest, ReplayTask, Lease, LeaseHeartbeat, ReplayStep,
          SiteScoreRow, ReplayResult, LeaseFailure, Problem>;
TYPED_TEST_SUITE(RecordsTest, AllRecords);

TYPED_TEST(RecordsTest, WhatTheRulesAcceptIsReadAndWrittenAgain) {
  const json::value sample = Sample<TypeParam>::of({});
  const auto record = from_request<TypeParam>(json::serialize(sample));
  EXPECT_EQ(json::parse(to_json(record)), sample);
}

TYPED_TEST(RecordsTest, WhatIsWrongIsRefusedByItsMember) {
  const json::value sample = Sample<TypeParam>::of({});
  TypeParam::describe([&](const char* name, auto access, const Member& member) {
    using Value = typename Inner<
        std::remove_cvref_t<std::invoke_result_t<decltype(access), TypeParam&>>>::Type;
    wrong_values<Value>(member, [&](const char* why, json::value value) {
      json::value message = sample;
      message.get_object()[name] = std::move(value);
      expect_refused<TypeParam>(message, name, why);
    });
    json::value message = sample;
    message.get_object().erase(name);
    if (member.required) expect_refused<TypeParam>(message, name, "absent");
  });
}

TYPED_TEST(RecordsTest, AnUnknownMemberIsRefusedWithThoseThereAre) {
  json::value message = Sample<TypeParam>::of({});
  message.get_object()["colour"] = "red";
  if (std::is_same_v<TypeParam, Problem>) {
    EXPECT_NO_THROW(from_request<TypeParam>(json::serialize(message)));
  } else {
    expect_refused<TypeParam>(message, "colour", "unknown");
  }
}

TYPED_TEST(RecordsTest, EveryMemberIsDescribed) { test::expect_all_described<TypeParam>(); }

// What is on record stays readable whatever the rules are now.
TEST(RecordTest, RulesAreForWhatComesFromOutside) {
  const std::string text =
      R"({"attempt":1,"step":0,"plan_version":1,"loss":1e300,"grad_norm":-1,"weights_hash":""})";
  EXPECT_THROW(from_request<StepReport>(text), JsonError);
  EXPECT_EQ(from_json<StepReport>(text).grad_norm, -1);
}

// Trainers without FP8, and those of 0.2.0, say nothing of casts.
TEST(RecordTest, AStepNeedNotSayWhatCastsDid) {
  const std::string step = R"({"attempt":1,"step":2,"plan_version":1,"loss":3)";
  const auto without = from_request<StepReport>(step + "}");
  EXPECT_FALSE(without.cast_saturated || without.cast_flushed || without.cast_peak);
  EXPECT_EQ(to_json(without).find("cast_"), std::string::npos);
  const auto with = [&](const std::string& members) {
    return from_request<StepReport>(step + "," + members + "}");
  };
  EXPECT_EQ(with(R"("cast_saturated":1.000001)").cast_saturated, 1.000001);
  EXPECT_EQ(with(R"("cast_flushed":1e-6)").cast_flushed, 1e-6);
  EXPECT_EQ(with(R"("cast_peak":1e60)").cast_peak, 1e60);
  EXPECT_TRUE(std::isinf(*with(R"("cast_peak":"Infinity")").cast_peak));
  EXPECT_FALSE(without.state_changed);
  EXPECT_EQ(with(R"("state_changed":true)").state_changed, true);
  for (const char* members :
       {R"("cast_saturated":0)", R"("cast_saturated":1.1)", R"("cast_flushed":"NaN")",
        R"("cast_flushed":-1e-6)", R"("cast_peak":-1)", R"("state_changed":1)"}) {
    EXPECT_THROW(with(members), JsonError) << members;
  }
}

// A row that was edited by hand, an event of a newer version.
TEST(RecordTest, AWordThatIsNotListedStaysReadable) {
  const std::string text = R"({"number":3,"kind":"sing","state":"sung"})";
  EXPECT_THROW(from_request<Directive>(text), JsonError);
  const auto directive = from_json<Directive>(text);
  EXPECT_FALSE(directive.kind.is_known());
  EXPECT_EQ(directive.kind, "sing");
  EXPECT_NE(directive.kind, DirectiveKind("stop"));
  EXPECT_EQ(json::parse(to_json(directive)).at("state"), "sung");
}

TEST(RecordTest, AnAnswerOfANewerDaemonMayHaveMembersThatAreNotKnown) {
  const std::string text =
      R"({"directives":[{"number":3,"kind":"stop","urgency":2}],"more":{"of":[1]}})";
  EXPECT_EQ(from_answer<DirectiveList>(text).directives.at(0).number, 3);
  EXPECT_THROW(from_json<DirectiveList>(text), JsonError);
  EXPECT_THROW(from_answer<DirectiveList>(R"({"directives":[{"kind":"stop"}]})"), JsonError);
}

TEST(RecordTest, TextsMayBeLeftAloneWhileNumbersAndHashesAreNot) {
  const auto read = from_request_with_any_text<CheckpointReport>;
  const std::string start = R"({"attempt":1,"step":0,"plan_version":1,"uri":"a\nb")";
  EXPECT_EQ(read(start + "}").uri, "a\nb");
  EXPECT_THROW(read(start + R"(,"bytes":-1})"), JsonError);
  EXPECT_THROW(read(start + R"(,"weights_hash":""})"), JsonError);
  EXPECT_THROW(from_request_with_any_text<Directive>(R"({"number":3,"kind":"sing"})"), JsonError);
}

TEST(RecordTest, AListWithTooManyItemsIsSaidAsThat) {
  StepBatch batch;
  batch.steps.resize(10'001);
  EXPECT_THROW(from_request<StepBatch>(to_json(batch)), TooManyItems);
}

}  // namespace
}  // namespace gnomon
