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

// The first block writes what all of them read.
__global__ void count_on_the_block_before(float* found, float* found_dynamic) {
  GNOMON_SHARED(float, room, [2]);
  if (blockIdx.x == 0) room[1] = dynamic_shared<float>()[1] = 7;
  found[blockIdx.x] = room[1];
  found_dynamic[blockIdx.x] = dynamic_shared<float>()[1];
}

TEST(CudaEmulationTest, NoBlockFindsWhatAnotherLeftInSharedMemory) {
  float found[2] = {}, found_dynamic[2] = {};
  const Grid grid{.blocks_x = 2, .threads = 1, .shared_bytes = 8};
  for (int twice = 0; twice < 2; ++twice) {
    launch("count", count_on_the_block_before, grid, nullptr, found, found_dynamic);
    EXPECT_EQ(found[0], 7);
    EXPECT_TRUE(std::isnan(found[1])) << found[1];
    EXPECT_EQ(found_dynamic[0], 7);
    EXPECT_TRUE(std::isnan(found_dynamic[1])) << found_dynamic[1];
  }
}

}  // namespace
}  // namespace gnomon::cuda
