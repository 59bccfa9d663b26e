// What the emulation of a device finds that a device would not say.
#include <gtest/gtest.h>

#include "kernels/cuda/kernel.h"

namespace gnomon::cuda {
namespace {

using CudaEmulationDeathTest = testing::Test;

void half_a_barrier(int) {
  if (threadIdx.x < 16) __syncthreads();
  if (threadIdx.x >= 16) __syncwarp();
}

TEST(CudaEmulationDeathTest, ABarrierThatSomeNeverComeToIsFound) {
  EXPECT_DEATH(launch("half", half_a_barrier, Grid{.threads = 32}, nullptr, 1), "a barrier");
}

}  // namespace
}  // namespace gnomon::cuda
