// Checks whether cuDNN has kernels for our graphs on a Hopper, which it tells, and compiles them,
// without one: from the device's properties, and with a driver that only takes what it is given.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_plan.h"
#include "lab/attention/problem.h"

namespace gnomon::cuda {
namespace {

using testing::HasSubstr;

// An H200's, or what is said of another compute capability with the same.
PlanTarget device(int capability = 900) {
  return {.properties = R"({
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "cudaDeviceId": 0,
    "deviceVer": )" + std::to_string(capability) +
                        R"(, "driverVer": 13000, "regsPerBlock": 65536, "multiProcessorCount": 132,
    "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
    "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "pciDeviceId": 0,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "isTccDriver": 0,
    "supportCoopLaunch": 1, "totalGlobalMem": 150000000000, "deviceName": "some device"})"};
}

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    // Before cuDNN looks for one by this name.
    ASSERT_NE(::dlopen(GNOMON_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
    try {
      cudnn();
    } catch (const MissingLibrary& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static CudnnPlan forward(const AttentionCase& problem, int capability = 900) {
    return {attention_forward_graph(problem.shape(), problem.width()), device(capability)};
  }
  static CudnnPlan backward(const AttentionCase& problem, int capability = 900) {
    return {attention_backward_graph(problem.shape(), problem.width()), device(capability)};
  }
};

TEST_F(CudnnPlans, ThereAreKernelsForEveryCaseAndTheirWorkspaceIsTheMatrixAndLittleMore) {
  std::vector<AttentionCase> cases = default_attention_cases();
  for (const int head_dim : {8, 96, 192}) cases.push_back({2, 384, 4, 2, head_dim});
  cases.push_back({1, 1, 2, 1, 64});
  cases.push_back({3, 1000, 9, 3, 64});
  for (const AttentionCase& problem : cases) {
    SCOPED_TRACE(problem.name());
    EXPECT_EQ(attention_refusal(problem.shape()), "");
    const CudnnPlan there = forward(problem), back = backward(problem);
    EXPECT_THAT(there.kernel(), HasSubstr("flash_fprop"));
    EXPECT_THAT(back.kernel(), HasSubstr("flash_bprop"));
    // Hopper's own, but for the forward pass of single tokens.
    if (problem.tokens > 1) {
      EXPECT_THAT(there.kernel(), HasSubstr("sm90"));
    }
    EXPECT_THAT(back.kernel(), HasSubstr("sm90"));
    EXPECT_LE(there.workspace_bytes(), 256);
    // dk and dv of every head, where several share them.
    const int64_t of_heads = problem.heads == problem.kv_heads
                                 ? 0
                                 : 2 * problem.rows() * problem.width() * int64_t{sizeof(bf16)};
    const int64_t matrix = attention_matrix_bytes(problem.shape());
    EXPECT_GE(back.workspace_bytes(), matrix);
    EXPECT_LE(back.workspace_bytes(), matrix + of_heads + 4096);
  }
}

TEST_F(CudnnPlans, PartsKeepTheWorkspaceSmall) {
  const AttentionCase problem{8, 8192, 32, 8, 128};
  const AttentionShape whole = problem.shape();
  EXPECT_GT(backward(problem).workspace_bytes(), int64_t{32} << 30);
  const auto parts = attention_parts(whole, kAttentionMatrixBytesMost);
  EXPECT_EQ(parts.size(), 32u) << "a sequence and two groups of heads each";
  const CudnnPlan part(attention_backward_graph(shape_of(parts[9], whole), problem.width()),
                       device());
  EXPECT_LT(part.workspace_bytes(), kAttentionMatrixBytesMost + (int64_t{64} << 20));
}

TEST_F(CudnnPlans, AShapeThatHasNoKernelIsNotSupported) {
  AttentionCase wide{1, 128, 1, 1, 264};
  EXPECT_NE(attention_refusal(wide.shape()), "");
  EXPECT_THROW(backward(wide), NotSupported);
  AttentionCase odd{1, 128, 1, 1, 20};
  EXPECT_NE(attention_refusal(odd.shape()), "");
  EXPECT_THROW(forward(odd), NotSupported);
}

TEST_F(CudnnPlans, AnOldDeviceIsNotSupported) {
  const AttentionCase problem{1, 128, 1, 1, 64};
  EXPECT_NO_THROW(forward(problem));
  EXPECT_THROW(forward(problem, 700), NotSupported);
}

TEST_F(CudnnPlans, TheSameKernelIsChosenEveryTime) {
  const AttentionCase problem{2, 2048, 16, 4, 128};
  EXPECT_EQ(backward(problem).kernel(), backward(problem).kernel());
}

TEST_F(CudnnPlans, WhatTheLibrarySaysIsInTheError) {
  const PlanTarget nonsense{.properties = "{}"};
  const AttentionCase problem{1, 128, 1, 1, 64};
  try {
    CudnnPlan(attention_forward_graph(problem.shape(), problem.width()), nonsense);
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_THAT(error.what(), HasSubstr("maxGridSize"));
    EXPECT_THAT(error.what(), HasSubstr("BAD_PARAM"));
  }
}

}  // namespace
}  // namespace gnomon::cuda
