#include "protocol/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Fingerprint fingerprint() {
  return {"AMD EPYC (avx512_bf16)", "cpu", "oneDNN 2.6.3", "0.1.0 abc", 2, 4};
}

ReplayTask task() {
  return {"run-1", 3,        4,    5, "plan", "version = 1\n", "triage", "/c/start", 60,
          20,      "/c/end", true, 7, 0.25};
}

// With all that a GPU may say.
StepReport watched_step() {
  DeviceHealth health;
  health.device = "0000:01:00.0";
  health.name = "NVIDIA H200";
  health.time = 1e9;
  health.error = "words";
  health.sm_clock_mhz = 1755;
  health.memory_clock_mhz = 3201;
  health.power_watts = 520.5;
  health.power_limit_watts = 700;
  health.temperature_celsius = 61;
  health.memory_used_bytes = 80'000'000'000;
  health.memory_total_bytes = 150'000'000'000;
  health.utilization_percent = 98;
  health.ecc_corrected = 7;
  health.ecc_uncorrected = 0;
  health.throttle_reasons = std::vector<ThrottleReason>{"idle", "hw_power_brake"};
  health.remapped_rows_pending = true;
  health.remapped_rows_failure = false;
  StepReport step;
  step.device_health = health;
  return step;
}

// Writing what was read gives the same text, and the text has every member: together a round trip.
template <typename Message>
void expect_round_trip(const Message& message, const std::vector<std::string>& members) {
  const std::string text = to_json(message);
  EXPECT_EQ(to_json(from_json<Message>(text)), text);
  for (const std::string& member : members) EXPECT_THAT(text, HasSubstr(member));
}

TEST(MessageJson, EveryMessageSurvivesTheRoundTrip) {
  expect_round_trip(fingerprint(), {"\"world_size\":2", "\"threads\":4", "avx512_bf16"});
  expect_round_trip(InjectedFault{"scale_shift", "lm_head", 5, 9, "words"}, {"\"end_step\":9"});
  expect_round_trip(RunRegistration{"demo",
                                    "36199_0",
                                    fingerprint(),
                                    "version = 0\n",
                                    {"a", "b"},
                                    2,
                                    100,
                                    200,
                                    300,
                                    20,
                                    -7,
                                    "/root",
                                    {InjectedFault{"bit_flip", "w", 1, 2, "d"}},
                                    6,
                                    7},
                    {"\"last_directive\":6", "\"newest_plan_version\":7", "\"job_id\":\"36199_0\"",
                     "\"seed\":-7", "\"sites\":[\"a\",\"b\"]", "bit_flip"});
  expect_round_trip(RunRegistered{"run-1", "enforce", "pause", 2.5},
                    {"run-1", "enforce", "pause", "2.5"});
  expect_round_trip(AttemptStart{2, 60, "rollback", 5, 1.5}, {"\"attempt\":2", "\"base_step\":60"});
  expect_round_trip(AttemptStart{2, 60, "restart", 5, 1.5, fingerprint()},
                    {"\"fingerprint\":{", "avx512_bf16"});
  expect_round_trip(TrainerNotice{1, 20, "checkpoint_failed", "words", "version = -1", -1, 2.5},
                    {"\"kind\":\"checkpoint_failed\"", "\"plan_version\":-1"});
  expect_round_trip(OverrideRequest{"set_plan", "version = 1", "", "ann", "trial", 3600},
                    {"\"owner\":\"ann\"", "\"expires_seconds\":3.6E3"});
  expect_round_trip(OverrideAccepted{4, 2, 1e9}, {"\"decision\":4", "\"directive\":2"});
  expect_round_trip(
      StepBatch{{StepReport{{1, 2, 3, 4.5, 6.5, 1e-3, 2048, 0.25, "0123456789abcdef"}, 1e9}}},
      {"\"weights_hash\":\"0123456789abcdef\"", "\"plan_version\":3"});
  expect_round_trip(
      StepBatch{{StepReport{{1, 2, 3, 4.5, 6.5, 1e-3, 2048, 0.25, "ab", "cd", 1e-6, 0.125, 64}}}},
      {"\"cast_saturated\":1E-6", "\"cast_flushed\":1.25E-1", "\"cast_peak\":6.4E1"});
  expect_round_trip(
      StepBatch{{watched_step()}},
      {"\"device_health\":{", "\"power_watts\":5.205E2", "\"ecc_uncorrected\":0",
       "\"throttle_reasons\":[\"idle\",\"hw_power_brake\"]", "\"remapped_rows_failure\":false"});
  expect_round_trip(ReportAck{1, 2, {"/a", "/b"}, 3},
                    {"\"protected_checkpoints\":[\"/a\",\"/b\"]"});
  expect_round_trip(CheckpointReport{1, 20, "/c", 3, 999, "mh", "wh", 1.25},
                    {"\"bytes\":999", "\"mh\""});
  expect_round_trip(RunFinished{"completed", 100, 2.5, 60.5, 1.0}, {"\"outcome\":\"completed\""});
  expect_round_trip(
      DirectiveList{{Directive{4, "rollback", "p", 5, 60, "/c", "because", "pending"}}},
      {"\"number\":4", "\"to_step\":60", "because"});
  expect_round_trip(DirectiveAck{"applied", 2, 61, "why", 3.0},
                    {"\"state\":\"applied\"", "\"step\":61"});
  LeaseRequest asker{"host:1", fingerprint()};
  asker.labels = {{"host", "node-9"}, {"pool", "night"}};
  expect_round_trip(asker, {"host:1", R"("labels":{"host":"node-9","pool":"night"})"});
  expect_round_trip(Lease{1, 2, 30.5, task()},
                    {"\"ttl_seconds\":3.05E1", "\"evaluate_endpoints\":true"});
  expect_round_trip(LeaseHeartbeat{7, 8}, {"\"token\":7", "\"steps_done\":8"});
  expect_round_trip(
      ReplayResult{
          {1.0, 2.0, 3.0, 4.0, 5, 6, 7, 9.0}, 1, fingerprint(), {ReplayStep{61, 2.5, 0.5, "h"}}, 8},
      {"\"run_end_loss_bf16\":3E0", "\"heldout_tokens\":5", "\"start_loss_fakequant\":9E0"});
  expect_round_trip(LeaseFailure{1, "disk", false}, {"\"retryable\":false"});
  expect_round_trip(Problem{"t", "Conflict", 409, "d", "a"}, {"\"status\":409"});
}

TEST(MessageJson, AbsentOptionalsStayAbsent) {
  ReplayResult result;
  result.replay_end_loss_bf16 = 1.5;
  const ReplayResult again = from_json<ReplayResult>(to_json(result));
  EXPECT_FALSE(again.start_loss_bf16.has_value());
  EXPECT_FALSE(again.run_end_loss_bf16.has_value());
  EXPECT_EQ(again.replay_end_loss_bf16, 1.5);
}

TEST(MessageJson, WhatAGpuDoesNotSayIsNoMember) {
  StepReport step;
  EXPECT_THAT(to_json(step), Not(HasSubstr("device_health")));
  step.device_health.emplace().device = "0000:01:00.0";
  const std::string text = to_json(step);
  EXPECT_THAT(text, Not(HasSubstr("power")));
  EXPECT_THAT(text, Not(HasSubstr("throttle")));
  const DeviceHealth again = from_json<StepReport>(text).device_health.value();
  EXPECT_EQ(again.ecc_uncorrected, std::nullopt);
  EXPECT_EQ(again.throttle_reasons, std::nullopt);
  EXPECT_EQ(again.remapped_rows_pending, std::nullopt);
}

TEST(MessageJson, EveryMemberOfAGpusHealthSurvives) {
  const DeviceHealth before = watched_step().device_health.value();
  const DeviceHealth after = from_json<StepReport>(to_json(watched_step())).device_health.value();
  EXPECT_EQ(after.name, before.name);
  EXPECT_EQ(after.power_watts, before.power_watts);
  EXPECT_EQ(after.memory_total_bytes, before.memory_total_bytes);
  EXPECT_EQ(after.throttle_reasons, before.throttle_reasons);
  EXPECT_EQ(after.remapped_rows_pending, true);
  EXPECT_EQ(after.remapped_rows_failure, false);
}

StepReport through_json(double loss) {
  StepReport report;
  report.loss = loss;
  return from_json<StepReport>(to_json(report));
}

TEST(MessageJson, NotANumberAndInfinitiesTravelAsWords) {
  EXPECT_TRUE(std::isnan(through_json(kNan).loss));
  EXPECT_EQ(through_json(kInf).loss, kInf);
  EXPECT_EQ(through_json(-kInf).loss, -kInf);
  StepReport report;
  report.loss = kNan;
  report.grad_norm = -kInf;
  EXPECT_THAT(to_json(report), HasSubstr(R"("loss":"NaN","grad_norm":"-Infinity")"));
}

TEST(MessageJson, EveryDoubleKeepsItsBits) {
  std::mt19937_64 random(7);
  std::vector<double> values = {0.0,
                                -0.0,
                                0.1,
                                1.0 / 3,
                                5e-324,
                                2.2250738585072014e-308,
                                1.7976931348623157e308,
                                9007199254740993.0,
                                1e23,
                                123456789012345680.0,
                                2.5};
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (int i = 0; i < 20000; ++i)
    values.push_back(std::uniform_real_distribution<double>(0, 12)(random));
  for (double value : values) {
    const double again = through_json(value).loss;
    EXPECT_EQ(std::memcmp(&again, &value, sizeof(value)), 0) << value;
  }
}

TEST(MessageJson, WholeNumbersAreAcceptedForDoublesAndNotTheOtherWayRound) {
  constexpr const char* kText =
      R"({"attempt":1,"step":2,"plan_version":3,"loss":4,"grad_norm":18446744073709551615})";
  EXPECT_EQ(from_json<StepReport>(kText).loss, 4.0);
  EXPECT_EQ(from_json<StepReport>(kText).grad_norm, 18446744073709551615.0);
}

struct Hostile {
  const char* text;
  const char* path;
  const char* what;
};

class HostileJson : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileJson, IsRefusedWithItsPath) {
  try {
    from_json<StepBatch>(GetParam().text);
    FAIL() << "accepted: " << GetParam().text;
  } catch (const JsonError& error) {
    EXPECT_EQ(error.path(), GetParam().path);
    EXPECT_THAT(error.what(), HasSubstr(GetParam().what));
  }
}

#define STEP(rest) \
  R"({"steps":[{"attempt":1,"step":2,"plan_version":3,"loss":4,"grad_norm":5)" rest "}]}"

INSTANTIATE_TEST_SUITE_P(
    Texts, HostileJson,
    ::testing::Values(
        Hostile{"", "", "byte 0"}, Hostile{"nul", "", "JSON"}, Hostile{"[]", "", "an object"},
        Hostile{"{}", "steps", "nothing"}, Hostile{R"({"steps":{}})", "steps", "an array"},
        Hostile{R"({"steps":[7]})", "steps[0]", "an object"},
        Hostile{R"({"steps":[]} x)", "", "JSON"},
        Hostile{R"({"steps":[],"steps":[]})", "", "twice"},
        Hostile{STEP(R"(,"step":3)"), "", "twice"},
        Hostile{STEP(R"(,"lss":3)"), "steps[0].lss", "an unknown member"},
        Hostile{STEP(R"(,"tokens":1.5)"), "steps[0].tokens", "a whole number"},
        Hostile{STEP(R"(,"tokens":1e3)"), "steps[0].tokens", "a whole number"},
        Hostile{STEP(R"(,"tokens":9223372036854775808)"), "steps[0].tokens", "64 bits"},
        Hostile{STEP(R"(,"tokens":"8")"), "steps[0].tokens", "a whole number"},
        Hostile{STEP(R"(,"tokens":null)"), "steps[0].tokens", "null"},
        Hostile{STEP(R"(,"time":"nan")"), "steps[0].time", "\"NaN\""},
        Hostile{STEP(R"(,"time":true)"), "steps[0].time", "a number"},
        Hostile{STEP(R"(,"time":NaN)"), "", "byte"}, Hostile{STEP(R"(,"time":1e999)"), "", "JSON"},
        Hostile{STEP(R"(,"weights_hash":5)"), "steps[0].weights_hash", "a string"},
        Hostile{STEP(",\"weights_hash\":\"\xff\""), "", "JSON"},
        Hostile{R"({"steps":[{"attempt":1,"plan_version":3,"loss":4,"grad_norm":5}]})",
                "steps[0].step", "nothing"}));

TEST(MessageJson, DeepNestingIsRefusedNotFollowed) {
  EXPECT_THROW(from_json<StepBatch>(std::string(100000, '[')), JsonError);
  EXPECT_THROW(
      from_json<StepBatch>(R"({"steps":)" + std::string(100, '[') + std::string(100, ']') + "}"),
      JsonError);
}

TEST(MessageJson, IntegersOf32BitsAreBounded) {
  std::string text = to_json(fingerprint());
  text.replace(text.find("\"threads\":4"), 11, "\"threads\":4294967297");
  EXPECT_THROW(from_json<Fingerprint>(text), JsonError);
}

TEST(MessageJson, EveryPrefixOfAMessageIsRefusedWithoutACrash) {
  const std::string text = to_json(Lease{1, 2, 30, task()});
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(from_json<Lease>(text.substr(0, length)), JsonError) << length;
  }
}

TEST(MessageJson, RandomDamageIsRefusedOrReadWithoutACrash) {
  const std::string text = to_json(Lease{1, 2, 30, task()});
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = text;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      from_json<Lease>(damaged);
    } catch (const JsonError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

TEST(MessageJson, TextThatIsNoUtf8IsMadeReadableWhenWritten) {
  LeaseFailure failure{1, "cannot open \xff\xfe \xc3\xa9 \xed\xa0\x80 end\xc3", true};
  EXPECT_EQ(from_json<LeaseFailure>(to_json(failure)).reason, "cannot open ?? \xc3\xa9 ??? end?");
}

TEST(MessageJson, AProblemMayCarryMembersWeDoNotKnow) {
  EXPECT_EQ(
      from_json<Problem>(R"({"title":"t","status":404,"instance":"/x","errors":[{}]})").status,
      404);
}

}  // namespace
}  // namespace gnomon
