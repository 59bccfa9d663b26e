// The main function of tests that need a GPU: without one they say so and end with status 3.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/errors.h"
#include "kernels/cuda/device.h"

int main(int argc, char** argv) {
  constexpr int kExitFailure = 1;
  constexpr int kExitNoDevice = 3;
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  try {
    std::puts(gnomon::cuda::device_info().name.c_str());
  } catch (const gnomon::cuda::NoCudaDevice& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kExitNoDevice;
  } catch (const gnomon::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kExitFailure;
  }
  return RUN_ALL_TESTS();
}
