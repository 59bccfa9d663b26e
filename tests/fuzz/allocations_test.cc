#include "tests/fuzz/allocations.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace gnomon::fuzz {
namespace {

constexpr int64_t kLimit = 10'000;

// The compiler leaves out memory that nobody uses.
void use(const std::vector<char>& memory) { asm volatile("" : : "r"(memory.data()) : "memory"); }

TEST(AllocationLimitTest, WhatIsGivenBackIsFreeAgain) {
  const AllocationLimit limit(kLimit);
  for (int i = 0; i < 100; ++i) use(std::vector<char>(5'000));
  EXPECT_GE(limit.most(), 5'000);
  EXPECT_LE(limit.most(), 6'000);
}

TEST(AllocationLimitTest, MemoryFromBeforeMayBeGivenBack) {
  auto before = std::make_unique<std::vector<char>>(50'000);
  const AllocationLimit limit(kLimit);
  before.reset();
  use(std::vector<char>(20'000));
  EXPECT_EQ(limit.most(), 0);
}

TEST(AllocationLimitTest, OtherThreadsAreFree) {
  const AllocationLimit limit(kLimit);
  std::thread([] { use(std::vector<char>(1'000'000)); }).join();
  EXPECT_LE(limit.most(), kLimit);
}

void hold(int64_t bytes, int64_t pieces) {
  const AllocationLimit limit(kLimit);
  std::vector<std::string> memory(static_cast<size_t>(pieces));
  for (std::string& piece : memory) piece.assign(static_cast<size_t>(bytes / pieces), 'x');
}

TEST(AllocationLimitTest, MoreEndsTheProgramAtOnceOrInPieces) {
  hold(8'000, 1);
  EXPECT_DEATH(hold(int64_t{1} << 60, 1), "1152921504606846977 bytes asked for");
  EXPECT_DEATH(hold(20'000, 10), "2001 bytes asked for, beside 8[0-9]{3} held; at most 10000");
}

}  // namespace
}  // namespace gnomon::fuzz
