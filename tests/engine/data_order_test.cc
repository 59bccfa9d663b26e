#include "trainer/engine/data_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/errors.h"

namespace gnomon {
namespace {

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  Permutation permutation(size, seed, epoch);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

TEST(Permutation, VisitsEveryIndexOnceForEverySize) {
  for (int64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 255, 1000, 4096, 4097}) {
    for (int64_t epoch : {0, 1, 12345}) {
      std::vector<int64_t> order = epoch_order(size, 3, epoch);
      std::ranges::sort(order);
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(order[static_cast<size_t>(i)], i) << "size " << size << ", epoch " << epoch;
      }
    }
  }
}

TEST(Permutation, DiffersBetweenEpochsAndSeeds) {
  std::vector<int64_t> order = epoch_order(1000, 3, 0);
  EXPECT_NE(order, epoch_order(1000, 3, 1));
  EXPECT_NE(order, epoch_order(1000, 4, 0));
  EXPECT_EQ(order, epoch_order(1000, 3, 0));
}

TEST(Permutation, LeavesFewElementsWhereTheyWere) {
  std::vector<int64_t> order = epoch_order(10000, 9, 2);
  int fixed = 0;
  int neighbours = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    fixed += order[i] == static_cast<int64_t>(i);
    neighbours += i > 0 && std::abs(order[i] - order[i - 1]) == 1;
  }
  EXPECT_LT(fixed, 10);       // 1 is expected of a random permutation
  EXPECT_LT(neighbours, 15);  // 2 are expected
}

TEST(Permutation, HoldsForSizesBeyond32Bits) {
  int64_t size = (int64_t{1} << 40) + 12345;
  Permutation permutation(size, 1, 0);
  std::set<int64_t> images;
  for (int64_t i = 0; i < 500; ++i) {
    int64_t image = permutation(size - 1 - i * 1000003);
    EXPECT_GE(image, 0);
    EXPECT_LT(image, size);
    images.insert(image);
  }
  EXPECT_EQ(images.size(), 500u);
  EXPECT_GT(*images.rbegin(), size / 2);
}

TEST(DataOrder, StepsRunThroughEpochsWithoutGapOrRepeat) {
  // 10 sequences of 8 tokens, four per step: epochs end within steps.
  DataOrder order(81, 8, 4, 5);
  ASSERT_EQ(order.sequences_per_epoch(), 10);
  std::vector<int64_t> seen;
  for (int64_t step = 1; step <= 10; ++step) {
    for (int64_t position = 0; position < 4; ++position)
      seen.push_back(order.sequence(step, position));
  }
  for (size_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> part(seen.begin() + static_cast<long>(epoch) * 10,
                              seen.begin() + static_cast<long>(epoch) * 10 + 10);
    EXPECT_THAT(part, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
}

TEST(DataOrder, EachEpochHasAnOrderOfItsOwn) {
  DataOrder order(8 * 20 + 1, 8, 20, 5);  // a step is an epoch
  std::set<std::vector<int64_t>> orders;
  for (int64_t step = 1; step <= 5; ++step) {
    std::vector<int64_t> sequences;
    for (int64_t position = 0; position < 20; ++position) {
      sequences.push_back(order.sequence(step, position));
    }
    orders.insert(sequences);
  }
  EXPECT_EQ(orders.size(), 5u);
}

TEST(DataOrder, ASequenceStartsAtItsNumberTimesItsLength) {
  DataOrder order(1000, 8, 4, 5);
  EXPECT_EQ(order.first_token(3, 1), order.sequence(3, 1) * 8);
}

TEST(DataOrder, TheLastSequenceHasItsTarget) {
  EXPECT_EQ(DataOrder(80, 8, 1, 1).sequences_per_epoch(), 9);  // the tenth has no last target
  EXPECT_EQ(DataOrder(81, 8, 1, 1).sequences_per_epoch(), 10);
}

TEST(DataOrder, RefusesDataShorterThanOneSequence) {
  EXPECT_NO_THROW(DataOrder(9, 8, 1, 1));
  EXPECT_THROW(DataOrder(8, 8, 1, 1), Error);
}

TEST(RandomTokens, AreUniformAndDependOnTheStep) {
  std::vector<int32_t> a(8192), b(8192), again(8192);
  random_tokens(1, 5, 0, 16, a);
  random_tokens(1, 6, 0, 16, b);
  random_tokens(1, 5, 0, 16, again);
  EXPECT_EQ(a, again);
  EXPECT_NE(a, b);
  std::vector<int> counts(16);
  for (int32_t token : a) counts.at(static_cast<size_t>(token)) += 1;
  for (int count : counts) EXPECT_NEAR(count, 512, 120);  // 5 standard deviations
}

}  // namespace
}  // namespace gnomon
