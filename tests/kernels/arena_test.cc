#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "base/errors.h"
#include "kernels/tensor.h"

namespace gnomon {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Arena, CountsWithoutMemoryThenHandsOutTheSameSizes) {
  Arena arena("test");
  EXPECT_EQ(arena.allocate<float>(3).data(), nullptr);
  EXPECT_EQ(arena.allocate<bf16>(100).size(), 100u);
  EXPECT_EQ(arena.bytes(), 64 + 256);
  arena.commit();
  EXPECT_EQ(arena.bytes(), 64 + 256);
  std::span<float> floats = arena.allocate<float>(3);
  std::span<bf16> halves = arena.allocate<bf16>(100);
  EXPECT_EQ(floats.size(), 3u);
  EXPECT_EQ(halves.size(), 100u);
  EXPECT_EQ(
      reinterpret_cast<std::byte*>(halves.data()) - reinterpret_cast<std::byte*>(floats.data()),
      64);
  EXPECT_EQ(arena.bytes(), 64 + 256);
}

TEST(Arena, AlignsEveryPieceTo64Bytes) {
  Arena arena("test");
  for (int64_t count : {1, 7, 64, 65, 1000}) arena.allocate<char>(count);
  arena.commit();
  for (int64_t count : {1, 7, 64, 65, 1000}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.allocate<char>(count).data()) % 64, 0u);
  }
}

TEST(Arena, GivesZeroedMemoryThatCanBeWrittenToItsEnd) {
  Arena arena("test");
  arena.allocate<int32_t>(1 << 20);
  arena.commit();
  std::span<int32_t> values = arena.allocate<int32_t>(1 << 20);
  EXPECT_TRUE(std::ranges::all_of(values, [](int32_t value) { return value == 0; }));
  std::ranges::fill(values, 7);
  EXPECT_EQ(values.back(), 7);
}

TEST(Arena, CanBeEmpty) {
  Arena arena("test");
  arena.commit();
  EXPECT_EQ(arena.bytes(), 0);
  EXPECT_TRUE(arena.allocate<float>(0).empty());
}

TEST(Arena, SaysNameAndSizeWhenThereIsNotEnoughMemory) {
  Arena arena("activations");
  arena.allocate<std::byte>(int64_t{1} << 50);
  EXPECT_THAT(
      [&] { arena.commit(); },
      ThrowsMessage<Error>(AllOf(HasSubstr("'activations'"), HasSubstr("1125899906842624 bytes"))));
}

TEST(ArenaDeathTest, RefusesMoreThanWasCounted) {
  Arena arena("test");
  arena.allocate<float>(16);
  arena.commit();
  arena.allocate<float>(16);
  EXPECT_DEATH(arena.allocate<float>(1), "used_ <= capacity_");
}

}  // namespace
}  // namespace gnomon
