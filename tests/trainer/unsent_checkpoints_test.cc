// Which checkpoints stay while nobody takes their reports.
#include "trainer/unsent_checkpoints.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gnomon {
namespace {

using Checkpoints = std::vector<UnsentCheckpoint>;

Checkpoints every(int64_t distance, int64_t count, int64_t bytes) {
  Checkpoints all;
  for (int64_t i = 0; i < count; ++i) all.push_back({i * distance, bytes});
  return all;
}

Checkpoints kept_of(const Checkpoints& all, const UnsentBounds& bounds) {
  const std::vector<size_t> deleted = unsent_to_delete(all, bounds);
  EXPECT_TRUE(std::ranges::is_sorted(deleted));
  Checkpoints kept;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!std::ranges::binary_search(deleted, i)) kept.push_back(all[i]);
  }
  return kept;
}

int64_t widest_gap(const Checkpoints& kept) {
  int64_t widest = 0;
  for (size_t i = 1; i < kept.size(); ++i) {
    widest = std::max(widest, kept[i].step - kept[i - 1].step);
  }
  return widest;
}

TEST(UnsentCheckpoints, AllStayWithinTheBounds) {
  EXPECT_TRUE(unsent_to_delete({}, {.count_max = 1, .bytes_max = 0}).empty());
  EXPECT_TRUE(unsent_to_delete(every(10, 5, 100), {.count_max = 5, .bytes_max = 500}).empty());
}

TEST(UnsentCheckpoints, BeyondTheirNumberTheOlderHalfIsThinnedOut) {
  const Checkpoints kept = kept_of(every(10, 9, 1), {.count_max = 8, .bytes_max = 1000});
  ASSERT_EQ(kept.size(), 6u);
  EXPECT_EQ(kept[0].step, 0);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(kept[5 - i].step, 80 - 10 * static_cast<int64_t>(i));
}

TEST(UnsentCheckpoints, BeyondTheirBytesToo) {
  const Checkpoints kept = kept_of(every(10, 40, 100), {.count_max = 64, .bytes_max = 2000});
  EXPECT_EQ(kept.size(), 15u);
  EXPECT_EQ(kept.front().step, 0);
  EXPECT_EQ(kept.back().step, 390);
  EXPECT_LE(widest_gap(kept), 200);
}

TEST(UnsentCheckpoints, TheOldestAndTheNewestAlwaysStay) {
  for (const int64_t count : {1, 2, 3, 100}) {
    const Checkpoints kept = kept_of(every(10, count, 100), {.count_max = 1, .bytes_max = 0});
    ASSERT_EQ(kept.size(), static_cast<size_t>(std::min<int64_t>(count, 2)));
    EXPECT_EQ(kept.front().step, 0);
    EXPECT_EQ(kept.back().step, (count - 1) * 10);
  }
}

// As an outage goes: one more each time.
TEST(UnsentCheckpoints, ALongOutageKeepsTheNewestAndAnEvenSpread) {
  const UnsentBounds bounds{.count_max = 64, .bytes_max = int64_t{1} << 40};
  Checkpoints all;
  for (int64_t step = 0; step < 5000; ++step) {
    all.push_back({step, 1000});
    all = kept_of(all, bounds);
    ASSERT_LE(all.size(), 64u);
    ASSERT_EQ(all.front().step, 0);
    for (int64_t back = 0; back < std::min<int64_t>(step, 24); ++back) {
      ASSERT_EQ(all[all.size() - 1 - static_cast<size_t>(back)].step, step - back);
    }
    ASSERT_LE(widest_gap(all), std::max<int64_t>(step / 5, 2)) << "step " << step;
  }
}

}  // namespace
}  // namespace gnomon
