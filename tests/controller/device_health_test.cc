// What trainers report of their GPU: on record with a bound, shown, in the metrics, and told where
// memory errors grow. No step is another one for it.
#include <fmt/format.h>

#include <limits>

#include "tests/controller/api_fixture.h"
#include "tests/support/special_numbers.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ReportedHealthTest : public ApiTest {
 protected:
  ReportedHealthTest() {
    trainer.run =
        from_json<RunRegistered>(
            trainer.client().checked("POST", "/v1/runs", to_json(test_registration())).body)
            .run;
    begin_attempt(1, "start", "host-a");
  }
  void begin_attempt(int64_t number, const std::string& cause, const std::string& host) {
    AttemptStart start;
    start.attempt = number;
    start.cause = test::any_word(cause);
    start.plan_version = 1;
    start.host = host;
    trainer.client().checked("POST", trainer.path("/attempts"), to_json(start));
  }
  static DeviceHealth healthy(double time) {
    DeviceHealth health;
    health.device = "0000:01:00.0";
    health.name = "NVIDIA H200";
    health.time = time;
    health.sm_clock_mhz = 1755;
    health.power_watts = 520.5;
    health.temperature_celsius = 61;
    health.memory_used_bytes = 80;
    health.memory_total_bytes = 100;
    health.ecc_corrected = 7;
    health.ecc_uncorrected = 0;
    health.throttle_reasons = std::vector<ThrottleReason>{"sw_power_cap"};
    health.remapped_rows_pending = false;
    return health;
  }
  static DeviceHealth with_errors(double time, int64_t uncorrected) {
    DeviceHealth health = healthy(time);
    health.ecc_uncorrected = uncorrected;
    return health;
  }
  void report(int64_t step, const std::optional<DeviceHealth>& health, int64_t attempt = 1) {
    StepReport carrier = test_step(step, attempt);
    carrier.device_health = health;
    EXPECT_EQ(trainer.post_steps({{carrier}}).accepted, 1);
  }
  Refused refused_health(const DeviceHealth& health) {
    StepReport carrier = test_step(1);
    carrier.device_health = health;
    return refused("POST", trainer.path("/steps"), to_json(StepBatch{{carrier}}));
  }
  boost::json::array rows() { return get(trainer.path("/device_health")).as_array(); }
  boost::json::array notices() { return get(trainer.path("/notices")).as_array(); }
  std::string sample(const std::string& name, const std::string& before_run = {},
                     const std::string& after_run = {}) {
    return fmt::format(
        "gnomon_device_{}{{device=\"0000:01:00.0\",host=\"host-a\",{}run=\"test/1\"{}}}", name,
        before_run, after_run);
  }

  FakeTrainer trainer{daemon.url()};
};

TEST_F(ReportedHealthTest, TheNewestIsShownWithItsHostAndTheRestListed) {
  EXPECT_TRUE(get(trainer.path("")).at("device_health").is_null());
  report(1, healthy(100));
  report(2, std::nullopt);
  report(3, healthy(120));
  ASSERT_EQ(rows().size(), 2u);
  const boost::json::value run = get(trainer.path(""));
  const boost::json::value& row = run.at("device_health");
  EXPECT_EQ(row.at("sample").as_int64(), 2);
  EXPECT_EQ(row.at("step").as_int64(), 3);
  EXPECT_EQ(row.at("host").as_string(), "host-a");
  EXPECT_EQ(row.at("body").at("power_watts").to_number<double>(), 520.5);
  EXPECT_FALSE(row.at("body").as_object().contains("utilization_percent")) << "not said, not 0";
  EXPECT_EQ(get(trainer.path("/device_health?from=2")).as_array().size(), 1u);
}

TEST_F(ReportedHealthTest, OfTenSecondsTheNewestSampleIsKept) {
  for (int64_t step = 1; step <= 25; ++step) report(step, healthy(100 + static_cast<double>(step)));
  ASSERT_EQ(rows().size(), 3u);
  EXPECT_EQ(rows().at(0).at("sampled_at").to_number<double>(), 109);
  EXPECT_EQ(rows().at(2).at("sampled_at").to_number<double>(), 125);
}

TEST_F(ReportedHealthTest, AStepIsTheSameWithAndWithoutIt) {
  report(1, healthy(100));
  EXPECT_EQ(trainer.post_steps({{test_step(1)}}).repeated, 1);
  StepReport again = test_step(1);
  again.device_health = healthy(500);
  EXPECT_EQ(trainer.post_steps({{again}}).repeated, 1);
  ASSERT_EQ(rows().size(), 1u);
  EXPECT_EQ(rows().at(0).at("sampled_at").to_number<double>(), 100) << "what came first stays";
}

TEST_F(ReportedHealthTest, WhatNoDeviceCanSayIsRefusedAndNothingIsTaken) {
  const auto expect = [&](const char* member, auto change) {
    DeviceHealth health = healthy(100);
    change(health);
    const Refused answer = refused_health(health);
    EXPECT_EQ(answer.status, 400) << member;
    EXPECT_THAT(answer.detail, HasSubstr(std::string("device_health.") + member));
    EXPECT_FALSE(answer.accepted.empty());
  };
  expect("power_watts", [](DeviceHealth& h) { h.power_watts = kNan; });
  expect("power_watts", [](DeviceHealth& h) { h.power_watts = -1; });
  expect("power_limit_watts", [](DeviceHealth& h) { h.power_limit_watts = kInfinity; });
  expect("sm_clock_mhz", [](DeviceHealth& h) { h.sm_clock_mhz = -1; });
  expect("memory_clock_mhz", [](DeviceHealth& h) { h.memory_clock_mhz = kNan; });
  expect("temperature_celsius", [](DeviceHealth& h) { h.temperature_celsius = 5e9; });
  expect("utilization_percent", [](DeviceHealth& h) { h.utilization_percent = 100.5; });
  expect("memory_used_bytes", [](DeviceHealth& h) { h.memory_used_bytes = -1; });
  expect("memory_total_bytes", [](DeviceHealth& h) { h.memory_total_bytes = -1; });
  expect("ecc_corrected", [](DeviceHealth& h) { h.ecc_corrected = -1; });
  expect("ecc_uncorrected", [](DeviceHealth& h) { h.ecc_uncorrected = -3; });
  expect("throttle_reasons", [](DeviceHealth& h) {
    h.throttle_reasons->push_back(ThrottleReason::on_record("tired"));
  });
  expect("device", [](DeviceHealth& h) { h.device = ""; });
  expect("device", [](DeviceHealth& h) { h.device = std::string(101, 'x'); });
  expect("device", [](DeviceHealth& h) { h.device = "a\nb"; });
  expect("name", [](DeviceHealth& h) { h.name = std::string(101, 'x'); });
  expect("time", [](DeviceHealth& h) { h.time = kNan; });
  expect("error", [](DeviceHealth& h) { h.error = std::string(1'001, 'x'); });
  EXPECT_TRUE(rows().empty());
  EXPECT_TRUE(get(trainer.path("/steps")).as_array().empty());
}

TEST_F(ReportedHealthTest, ErrorsThatMemoryCouldNotCorrectAreTold) {
  report(1, with_errors(100, 2));
  EXPECT_TRUE(notices().empty()) << "those were there before the run";
  report(2, with_errors(110, 2));
  EXPECT_TRUE(notices().empty());
  report(3, with_errors(120, 5));
  ASSERT_EQ(notices().size(), 1u);
  EXPECT_EQ(notices().at(0).at("kind").as_string(), "ecc_errors");
  EXPECT_EQ(notices().at(0).at("step").as_int64(), 3);
  EXPECT_THAT(std::string(notices().at(0).at("text").as_string()),
              AllOf(HasSubstr("0000:01:00.0 of host-a"),
                    HasSubstr("3 more uncorrected ECC errors, 5 since")));
  EXPECT_EQ(metric("gnomon_trainer_notices_total{kind=\"ecc_errors\",run=\"test/1\"}"), 1);
}

TEST_F(ReportedHealthTest, ErrorsThatGoOnAreToldEveryTenMinutesAndNoneIsForgotten) {
  report(1, with_errors(100, 0));
  for (int64_t step = 2; step < 60; ++step) {
    report(step, with_errors(100 + 10 * static_cast<double>(step), step - 1));
  }
  ASSERT_EQ(notices().size(), 1u) << "one second after the other";
  report(60, with_errors(721, 59));
  ASSERT_EQ(notices().size(), 2u);
  EXPECT_THAT(std::string(notices().at(1).at("text").as_string()), HasSubstr("58 more"));
}

TEST_F(ReportedHealthTest, ADriverThatWasLoadedAgainCountsFromZero) {
  report(1, with_errors(100, 5));
  report(2, with_errors(200, 0));
  EXPECT_TRUE(notices().empty());
  report(3, with_errors(300, 1));
  ASSERT_EQ(notices().size(), 1u);
  EXPECT_THAT(std::string(notices().at(0).at("text").as_string()),
              HasSubstr("1 more uncorrected ECC error, 1 since"));
}

TEST_F(ReportedHealthTest, AnotherDeviceIsNoGrowthAndASilentOneIsNoEnd) {
  report(1, with_errors(100, 0));
  DeviceHealth lost;
  lost.device = "0000:01:00.0";
  lost.time = 110;
  lost.error = "the GPU does not answer";
  report(2, lost);
  EXPECT_EQ(metric(sample("up")), 0);
  EXPECT_EQ(metric(sample("power_watts")), -1) << "no number of a device that does not answer";
  DeviceHealth other = with_errors(120, 9);
  other.device = "0000:02:00.0";
  report(3, other);
  EXPECT_TRUE(notices().empty());
  report(4, with_errors(130, 0));
  report(5, lost);
  report(6, with_errors(150, 1));
  EXPECT_EQ(notices().size(), 1u);
}

TEST_F(ReportedHealthTest, IsInTheMetricsAndComesBackWithTheDaemon) {
  EXPECT_EQ(metric(sample("up")), -1);
  report(1, with_errors(100, 3));
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(metric(sample("up")), 1);
    EXPECT_EQ(metric(sample("power_watts")), 520.5);
    EXPECT_EQ(metric(sample("temperature_celsius")), 61);
    EXPECT_EQ(metric(sample("sm_clock_hertz")), 1.755e9);
    EXPECT_EQ(metric(sample("memory_used_bytes")), 80);
    EXPECT_EQ(metric(sample("memory_size_bytes")), 100);
    EXPECT_EQ(metric(sample("last_sample_timestamp_seconds")), 100);
    EXPECT_EQ(metric(sample("ecc_errors_total", "kind=\"uncorrected\",")), 3);
    EXPECT_EQ(metric(sample("ecc_errors_total", "kind=\"corrected\",")), 7);
    EXPECT_EQ(metric(sample("throttled", "reason=\"sw_power_cap\",")), 1);
    EXPECT_EQ(metric(sample("throttled", "reason=\"hw_power_brake\",")), 0);
    EXPECT_EQ(metric(sample("remapped_rows", "", ",state=\"pending\"")), 0);
    EXPECT_EQ(metric(sample("remapped_rows", "", ",state=\"failure\"")), -1) << "not said";
    EXPECT_EQ(metric(sample("utilization_ratio")), -1) << "not said";
    daemon.kill();
    daemon.start();
  }
}

TEST_F(ReportedHealthTest, AVerdictOnHardwareStandsBesideWhatTheDeviceCounted) {
  trainer.begin();
  trainer.train(1, 10);
  StepReport carrier = test_step(11);
  carrier.device_health = with_errors(100, 0);
  trainer.post_steps({{carrier}});
  carrier = test_step(12);
  carrier.device_health = with_errors(200, 1);
  trainer.post_steps({{carrier}});
  FakeVerifier verifier(daemon.url());
  // A gap brings `same` about, and its bits differ.
  for (int i = 0; i < 20; ++i) {
    std::optional<Lease> lease = verifier.lease();
    if (!lease) break;
    ReplayResult result = verifier.result(*lease, 1.0);
    if (lease->task.arm == "same") result.steps.back().weights_hash = "00000000deadbeef";
    result.token = lease->token;
    verifier.client().checked("POST", fmt::format("/v1/leases/{}/complete", lease->lease),
                              to_json(result));
  }
  int seen = 0;
  const boost::json::value decisions = get(trainer.path("/decisions"));
  for (const boost::json::value& decision : decisions.as_array()) {
    const bool hardware = decision.at("verdict").as_string() == "transient_fault";
    EXPECT_EQ(decision.at("device_errors").is_string(), hardware) << decision;
    if (!hardware) continue;
    ++seen;
    EXPECT_THAT(std::string(decision.at("device_errors").as_string()),
                HasSubstr("1 more uncorrected ECC error"));
    EXPECT_THAT(std::string(decision.at("sentence").as_string()), Not(HasSubstr("ECC")))
        << "the decision itself does not rest on it";
  }
  EXPECT_GT(seen, 0) << decisions;
}

}  // namespace
}  // namespace gnomon
