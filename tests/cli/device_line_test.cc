// How a run's GPU is, in one line.
#include "cli/device_line.h"

#include <gtest/gtest.h>

namespace gnomon::cli {
namespace {

std::string line(const std::string& body, const std::string& host = "node7") {
  boost::json::object row;
  row["device"] = "0000:01:00.0";
  row["host"] = host;
  row["sampled_at"] = 100.0;
  row["body"] = boost::json::parse(body);
  return device_line(row, 103);
}

TEST(DeviceLine, HasEveryNumberInItsUnit) {
  EXPECT_EQ(line(R"({"name":"NVIDIA H200","sm_clock_mhz":1755,"power_watts":520.4,)"
                 R"("power_limit_watts":700,"temperature_celsius":61,"utilization_percent":98,)"
                 R"("memory_used_bytes":75161927680,"memory_total_bytes":150323855360,)"
                 R"("ecc_corrected":7,"ecc_uncorrected":2,)"
                 R"("throttle_reasons":["sw_power_cap","hw_thermal_slowdown"],)"
                 R"("remapped_rows_pending":true,"remapped_rows_failure":false})"),
            "GPU 0000:01:00.0 of node7 (NVIDIA H200): 1755 MHz, 520 of 700 W, 61 °C, 98% busy, "
            "70.0 GiB of 140.0 GiB, ECC errors: 7 corrected, 2 uncorrected, throttled by "
            "sw_power_cap, hw_thermal_slowdown, memory rows wait for a reset; 3s ago");
}

TEST(DeviceLine, LeavesOutWhatIsNotSaid) {
  EXPECT_EQ(line(R"({"power_watts":90.0,"ecc_uncorrected":0,"throttle_reasons":["idle"]})", ""),
            "GPU 0000:01:00.0: 90 W, ECC errors: 0 uncorrected; 3s ago");
  EXPECT_EQ(line("{}"), "GPU 0000:01:00.0 of node7: tells nothing; 3s ago");
}

TEST(DeviceLine, SaysWhyADeviceDoesNotAnswer) {
  EXPECT_EQ(
      line(R"({"name":"NVIDIA H200","error":"the GPU does not answer: GPU is lost"})"),
      "GPU 0000:01:00.0 of node7 (NVIDIA H200): the GPU does not answer: GPU is lost; 3s ago");
}

}  // namespace
}  // namespace gnomon::cli
