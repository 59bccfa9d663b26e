// The reader of a GPU's health and its watch, against a stand-in for the driver's library: a real
// shared library that answers what a file says.
#include "trainer/device_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/cuda/nvml.h"
#include "protocol/json.h"
#include "tests/support/standin_gpu.h"
#include "trainer/device_watch.h"

namespace gnomon {
namespace {

using test::eventually;
using test::StandinGpu;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

SharedLibrary standin() {
  return SharedLibrary({.what = "the stand-in for NVML",
                        .file = std::string(GNOMON_STANDIN_NVML_FOLDER) + "/libnvidia-ml.so.1"});
}
SharedLibrary old_standin() {
  return SharedLibrary(
      {.what = "the stand-in for an old NVML",
       .file = std::string(GNOMON_STANDIN_OLD_NVML_FOLDER) + "/libnvidia-ml.so.1"});
}
SharedLibrary no_library() {
  return SharedLibrary({.what = "NVML", .file = "libgnomon-no-nvml.so.1", .advice = "Advice."});
}
SharedLibrary another_library() { return SharedLibrary({.what = "NVML", .file = "libz.so.1"}); }

class DeviceHealthTest : public ::testing::Test {
 protected:
  DeviceHealthTest() { ::setenv("GNOMON_STANDIN_NVML", gpu.file().c_str(), 1); }
  ~DeviceHealthTest() override { ::unsetenv("GNOMON_STANDIN_NVML"); }

  StandinGpu gpu;
  SharedLibrary library = standin();
  DeviceHealthReader reader{StandinGpu::kBusId, library};
};

TEST_F(DeviceHealthTest, EveryNumberIsReadInItsUnit) {
  const DeviceHealth health = reader.read();
  EXPECT_EQ(health.error, "");
  EXPECT_EQ(health.device, "0000:01:00.0");
  EXPECT_EQ(health.name, "NVIDIA Stand-in");
  EXPECT_GT(health.time, 1e9);
  EXPECT_EQ(health.sm_clock_mhz, 1755.0);
  EXPECT_EQ(health.memory_clock_mhz, 3201.0);
  EXPECT_DOUBLE_EQ(health.power_watts.value(), 520.5);
  EXPECT_DOUBLE_EQ(health.power_limit_watts.value(), 700.0);
  EXPECT_EQ(health.temperature_celsius, 61.0);
  EXPECT_EQ(health.memory_used_bytes, 80'000'000'000);
  EXPECT_EQ(health.memory_total_bytes, 150'000'000'000);
  EXPECT_EQ(health.utilization_percent, 98.0);
  EXPECT_EQ(health.ecc_corrected, 7);
  EXPECT_EQ(health.ecc_uncorrected, 0);
  EXPECT_THAT(health.throttle_reasons.value(), ElementsAre("sw_power_cap"));
  EXPECT_EQ(health.remapped_rows_pending, false);
  EXPECT_EQ(health.remapped_rows_failure, false);
}

TEST_F(DeviceHealthTest, EachThrottleReasonHasItsNameAndNoneIsAnEmptyList) {
  const std::vector<std::pair<int, const char*>> bits = {{1, "idle"},
                                                         {2, "applications_clocks"},
                                                         {4, "sw_power_cap"},
                                                         {8, "hw_slowdown"},
                                                         {0x10, "sync_boost"},
                                                         {0x20, "sw_thermal_slowdown"},
                                                         {0x80, "hw_power_brake"},
                                                         {0x40, "hw_thermal_slowdown"}};
  for (const auto& [bit, name] : bits) {
    gpu.set("reasons", std::to_string(bit));
    EXPECT_THAT(reader.read().throttle_reasons.value(), ElementsAre(name));
  }
  gpu.set("reasons", "104");
  EXPECT_THAT(reader.read().throttle_reasons.value(),
              ElementsAre("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"));
  gpu.set("reasons", "0");
  EXPECT_THAT(reader.read().throttle_reasons.value(), IsEmpty());
}

TEST_F(DeviceHealthTest, WhatTheDeviceDoesNotSupportIsAbsentAndNotZero) {
  for (const char* key :
       {"sm_mhz", "memory_mhz", "power_mw", "power_limit_mw", "celsius", "memory_used",
        "utilization", "ecc_corrected", "ecc_uncorrected", "reasons", "rows_pending", "name"}) {
    gpu.forget(key);
  }
  const DeviceHealth health = DeviceHealthReader(StandinGpu::kBusId, library).read();
  EXPECT_EQ(health.error, "");
  // Nothing but what identifies the sample is in the message.
  EXPECT_EQ(to_json(DeviceHealth{.device = health.device, .time = health.time}), to_json(health));
}

TEST_F(DeviceHealthTest, AMarkForNotAvailableIsNoMeasurement) {
  gpu.set("power_mw", "4294967295");
  gpu.set("celsius", "4294967295");
  gpu.set("utilization", "4294967295");
  gpu.set("sm_mhz", "4294967295");
  gpu.set("ecc_uncorrected", "18446744073709551615");
  gpu.set("memory_used", "160000000000");
  const DeviceHealth health = reader.read();
  EXPECT_EQ(health.power_watts, std::nullopt);
  EXPECT_EQ(health.temperature_celsius, std::nullopt);
  EXPECT_EQ(health.utilization_percent, std::nullopt);
  EXPECT_EQ(health.sm_clock_mhz, std::nullopt);
  EXPECT_EQ(health.ecc_uncorrected, std::nullopt);
  EXPECT_EQ(health.memory_used_bytes, std::nullopt) << "more than there is";
  EXPECT_EQ(health.memory_clock_mhz, 3201.0);
}

TEST_F(DeviceHealthTest, ALostGpuIsToldWithoutNumbersAndFoundAgain) {
  reader.read();
  gpu.set("fail_celsius", "15");
  const DeviceHealth lost = reader.read();
  EXPECT_THAT(lost.error, AllOf(HasSubstr("GPU is lost"), HasSubstr("15")));
  EXPECT_EQ(lost.sm_clock_mhz, std::nullopt) << "asked before it was lost";
  EXPECT_EQ(lost.name, "NVIDIA Stand-in");
  gpu.forget("fail_celsius");
  EXPECT_EQ(reader.read().error, "");
}

TEST_F(DeviceHealthTest, OneQuestionThatFailsIsOneNumberThatIsAbsent) {
  gpu.set("fail_ecc_uncorrected", "4");
  const DeviceHealth health = reader.read();
  EXPECT_EQ(health.error, "");
  EXPECT_EQ(health.ecc_uncorrected, std::nullopt);
  EXPECT_EQ(health.ecc_corrected, 7);
  gpu.set("fail", "999");
  EXPECT_THAT(reader.read().error, HasSubstr("tells nothing"));
}

TEST_F(DeviceHealthTest, ADeviceThatIsNotThereIsNamed) {
  DeviceHealthReader other("0000:99:00.0", library);
  EXPECT_THAT(other.read().error, AllOf(HasSubstr("0000:99:00.0"), HasSubstr("Not Found")));
  gpu.set("bus_id", "0000:99:00.0");
  EXPECT_EQ(other.read().error, "") << "it is looked for again";
  gpu.set("fail_init", "9");
  EXPECT_THAT(DeviceHealthReader("0000:99:00.0", library).read().error,
              HasSubstr("NVML does not start"));
}

TEST_F(DeviceHealthTest, AnOlderDriverHasTheReasonsUnderTheirOldName) {
  const SharedLibrary old = old_standin();
  const DeviceHealth health = DeviceHealthReader(StandinGpu::kBusId, old).read();
  EXPECT_EQ(health.error, "");
  EXPECT_THAT(health.throttle_reasons.value(), ElementsAre("sw_power_cap"));
  EXPECT_EQ(health.remapped_rows_pending, std::nullopt) << "a function that it lacks";
  EXPECT_EQ(health.sm_clock_mhz, 1755.0);
}

TEST_F(DeviceHealthTest, ALibraryThatIsNotNvmlIsRefused) {
  const SharedLibrary zlib = another_library();
  EXPECT_THROW(DeviceHealthReader(StandinGpu::kBusId, zlib), MissingLibrary);
}

TEST_F(DeviceHealthTest, BusIdsAreTold) {
  for (const char* good : {"0000:01:00.0", "00000000:C1:00.0", "000a:ff:1f.7"}) {
    EXPECT_TRUE(is_pci_bus_id(good)) << good;
  }
  for (const char* bad : {"", "0", "01:00.0", "0000:01:00", "0000:01:00.00", "0000:01:00,0",
                          "00000:01:00.0", "0000:0g:00.0", "GPU-1"}) {
    EXPECT_FALSE(is_pci_bus_id(bad)) << bad;
  }
}

TEST_F(DeviceHealthTest, TheWatchGivesEachSampleOnce) {
  DeviceWatch watch(
      {.bus_id = StandinGpu::kBusId, .interval = std::chrono::milliseconds(5), .open = standin});
  DeviceWatch::News news;
  ASSERT_TRUE(eventually([&] { return (news = watch.poll()).health.has_value(); }));
  EXPECT_EQ(news.health->power_watts, 520.5);
  EXPECT_EQ(news.trouble, "");
  gpu.set("celsius", "88");
  EXPECT_TRUE(eventually([&] {
    news = watch.poll();
    return news.health && news.health->temperature_celsius == 88.0;
  }));
}

TEST_F(DeviceHealthTest, TheWatchSamplesNoOftenerThanItsIntervalHoweverOftenItIsAsked) {
  DeviceWatch watch(
      {.bus_id = StandinGpu::kBusId, .interval = std::chrono::seconds(30), .open = standin});
  int samples = 0;
  for (const auto until = Clock::now() + std::chrono::milliseconds(300); Clock::now() < until;) {
    if (watch.poll().health) ++samples;
  }
  EXPECT_EQ(samples, 1);
}

TEST_F(DeviceHealthTest, TroubleIsToldWhenItBeginsAndWhenItEnds) {
  gpu.set("fail", "15");
  DeviceWatch watch(
      {.bus_id = StandinGpu::kBusId, .interval = std::chrono::milliseconds(5), .open = standin});
  std::vector<std::string> received;
  int samples = 0;
  const auto listen = [&](size_t sentences, int more) {
    return eventually([&, wanted = samples + more] {
      DeviceWatch::News news = watch.poll();
      if (!news.trouble.empty()) received.push_back(news.trouble);
      if (news.health) ++samples;
      return received.size() >= sentences && samples >= wanted;
    });
  };
  ASSERT_TRUE(listen(1, 5));
  gpu.forget("fail");
  ASSERT_TRUE(listen(2, 5));
  ASSERT_EQ(received.size(), 2u) << "once each";
  EXPECT_THAT(received[0], AllOf(HasSubstr("0000:01:00.0"), HasSubstr("GPU is lost")));
  EXPECT_THAT(received[1], HasSubstr("answers again"));
}

TEST_F(DeviceHealthTest, WithoutALibraryTheWatchSaysSoOnceAndGivesNothing) {
  DeviceWatch watch({.bus_id = StandinGpu::kBusId, .open = no_library});
  DeviceWatch::News news;
  ASSERT_TRUE(eventually([&] { return !(news = watch.poll()).trouble.empty(); }));
  EXPECT_THAT(news.trouble, AllOf(HasSubstr("is not watched"), HasSubstr("libgnomon-no-nvml.so.1"),
                                  HasSubstr("Advice.")));
  EXPECT_FALSE(watch.poll().health.has_value());
}

TEST_F(DeviceHealthTest, ADriverThatHangsHoldsUpNeitherAStepNorTheEnd) {
  gpu.set("sleep_ms", "800");
  const auto start = Clock::now();
  {
    DeviceWatch watch({.bus_id = StandinGpu::kBusId,
                       .patience_at_end = std::chrono::milliseconds(50),
                       .open = standin});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it is inside a call by now
    for (int i = 0; i < 1000; ++i) EXPECT_FALSE(watch.poll().health.has_value());
  }
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(600));
  gpu.forget("sleep_ms");
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the thread that was left behind ends
}

// The share that is ours: the stand-in answers at once, but for reading its file.
TEST_F(DeviceHealthTest, ASampleTakesMillisecondsAndToTakeItMicroseconds) {
  constexpr int kTimes = 200;
  reader.read();
  auto start = Clock::now();
  for (int i = 0; i < kTimes; ++i) reader.read();
  const double sample = std::chrono::duration<double>(Clock::now() - start).count() / kTimes;
  DeviceWatch watch({.bus_id = StandinGpu::kBusId, .open = standin});
  start = Clock::now();
  for (int i = 0; i < kTimes; ++i) watch.poll();
  const double take = std::chrono::duration<double>(Clock::now() - start).count() / kTimes;
  RecordProperty("sample_microseconds", std::to_string(sample * 1e6));
  RecordProperty("take_microseconds", std::to_string(take * 1e6));
  EXPECT_LT(sample, 0.1);
  EXPECT_LT(take, 1e-3);
}

}  // namespace
}  // namespace gnomon
