// Why there is no device, in words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"

namespace gnomon::cuda {
namespace {

using testing::HasSubstr;

constexpr int kCuda13 = 13000;

TEST(WhyNoDevice, IsEmptyWhereThereIsOne) {
  EXPECT_EQ(why_no_device({.devices = 1, .driver_version = kCuda13, .runtime_version = kCuda13}),
            "");
}

TEST(WhyNoDevice, NoDriver) {
  const std::string text =
      why_no_device({.status = "cudaErrorInsufficientDriver", .runtime_version = kCuda13});
  EXPECT_THAT(text, HasSubstr("no NVIDIA driver is loaded"));
  EXPECT_THAT(text, HasSubstr("CUDA 13.0"));
}

TEST(WhyNoDevice, AnOldDriverIsNamedWithBothVersions) {
  const std::string text = why_no_device({.status = "cudaErrorInsufficientDriver",
                                          .driver_version = 12040,
                                          .runtime_version = kCuda13});
  EXPECT_THAT(text, HasSubstr("made for CUDA 12.4"));
  EXPECT_THAT(text, HasSubstr("needs 13.0"));
  EXPECT_THAT(text, HasSubstr("580"));
}

TEST(WhyNoDevice, HiddenDevicesAreSaidToBeHidden) {
  for (const char* status : {"cudaSuccess", "cudaErrorNoDevice"}) {
    const std::string text = why_no_device(
        {.status = status, .driver_version = kCuda13, .runtime_version = kCuda13, .visible = "7"});
    EXPECT_THAT(text, HasSubstr("shows no GPU (CUDA_VISIBLE_DEVICES=\"7\")"));
  }
}

TEST(WhyNoDevice, AnotherTroubleKeepsItsName) {
  EXPECT_EQ(why_no_device({.status = "cudaErrorSystemNotReady",
                           .driver_version = kCuda13,
                           .runtime_version = kCuda13}),
            "cudaErrorSystemNotReady");
}

}  // namespace
}  // namespace gnomon::cuda
