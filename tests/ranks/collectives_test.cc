// What ranks say to each other, asserted on every rank.
#include "kernels/comm/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "base/philox.h"
#include "kernels/comm/compressed_collectives.h"
#include "tests/ranks/ranks.h"

namespace gnomon::test {
namespace {

// What rank `rank` has; every rank can compute every other's.
std::vector<float> gradients_of(int rank, int64_t count, uint64_t key = 7) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    float unit =
        philox_uniform(philox(key, static_cast<uint64_t>(rank), static_cast<uint64_t>(i))[0]) -
        0.5f;
    values[static_cast<size_t>(i)] = unit * std::exp2(static_cast<float>((i + 3 * rank) % 17) - 8);
  }
  return values;
}

std::vector<float> summed_in_rank_order(int64_t count) {
  std::vector<float> sum = gradients_of(0, count);
  for (int rank = 1; rank < collectives().size(); ++rank) {
    std::vector<float> values = gradients_of(rank, count);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

TEST(Ranks, AreAsManyAsWereStarted) {
  EXPECT_GE(collectives().size(), 2);
  const bool by_variables = std::getenv("WORLD_SIZE") != nullptr;
  EXPECT_EQ(collectives().name(), by_variables ? "tcp" : "mpi");
}

TEST(Partition, CoversEverythingInGrains) {
  for (int64_t elements : {0, 1, 127, 128, 129, 100000}) {
    for (int parts : {1, 2, 3, 7}) {
      Partition partition = Partition::even(elements, parts, 128);
      EXPECT_EQ(partition.begin(0), 0);
      EXPECT_EQ(partition.elements(), elements);
      int64_t least = elements, most = 0;
      for (int part = 0; part < parts; ++part) {
        EXPECT_GE(partition.size(part), 0);
        if (partition.size(part) > 0) {
          EXPECT_EQ(partition.begin(part) % 128, 0);
        }
        least = std::min(least, partition.size(part));
        most = std::max(most, partition.size(part));
      }
      EXPECT_LE(most - least, 256);
    }
  }
}

TEST(Broadcast, BringsTheRootsBytesToAll) {
  std::string long_text(100000, 'x');
  long_text += "end";
  for (int root = 0; root < collectives().size(); ++root) {
    std::string text;
    if (collectives().rank() == root) text = long_text;
    collectives().broadcast_text(text, root);
    EXPECT_EQ(text, long_text);
  }
}

// Covers every size at which a transport does something else, in both directions at once.
TEST(Exchange, BringsEveryRankWhatEachOtherSentIt) {
  const int me = collectives().rank(), all = collectives().size();
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{16}, size_t{65'537}, size_t{9'000'001}}) {
    std::vector<std::vector<std::byte>> sent, got;
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
    // Rank 0 sends nothing to rank 1, so that they do not all wait for each other.
    auto size_of = [&](int sender, int receiver) {
      return sender == 0 && receiver == 1 ? 0 : bytes + static_cast<size_t>(3 * sender + receiver);
    };
    for (int other = 0; other < all; ++other) {
      sent.emplace_back(size_of(me, other), static_cast<std::byte>(16 * me + other));
      got.emplace_back(size_of(other, me));
    }
    for (int other = 0; other < all; ++other) {
      to.emplace_back(sent[static_cast<size_t>(other)]);
      from.emplace_back(got[static_cast<size_t>(other)]);
    }
    collectives().exchange(to, from);
    for (int other = 0; other < all; ++other) {
      if (other == me) continue;
      const std::vector<std::byte> expected(size_of(other, me),
                                            static_cast<std::byte>(16 * other + me));
      ASSERT_TRUE(got[static_cast<size_t>(other)] == expected) << bytes << " from " << other;
    }
  }
}

// More than one round of pieces, parts of different sizes.
TEST(ReduceScatter, SumsInRankOrderBitForBit) {
  for (int64_t count :
       {int64_t{1}, int64_t{1000}, int64_t{2'500'000} * collectives().size() + 77}) {
    Partition parts = Partition::even(count, collectives().size(), 128);
    std::vector<float> all = gradients_of(collectives().rank(), count);
    std::vector<float> before = all;
    collectives().reduce_scatter(all, parts);
    std::vector<float> expected = summed_in_rank_order(count);
    for (int64_t i = 0; i < count; ++i) {
      bool mine = i >= parts.begin(collectives().rank()) &&
                  i < parts.begin(collectives().rank()) + parts.size(collectives().rank());
      size_t at = static_cast<size_t>(i);
      ASSERT_EQ(all[at], mine ? expected[at] : before[at]) << i;
    }
  }
}

TEST(AllGather, BringsEveryPart) {
  constexpr int64_t kCount = 1'000'003;
  Partition parts = Partition::even(kCount, collectives().size(), 128);
  std::vector<int64_t> expected(kCount), all(kCount);
  std::iota(expected.begin(), expected.end(), 5);
  std::ranges::copy(parts.of(std::span(expected), collectives().rank()),
                    parts.of(std::span(all), collectives().rank()).begin());
  collectives().all_gather(std::span(all), parts);
  EXPECT_EQ(all, expected);
}

TEST(Gather, BringsEveryPartToTheRootOnly) {
  constexpr int64_t kCount = 10'001;
  Partition parts = Partition::even(kCount, collectives().size(), 1);
  const int rank = collectives().rank();
  std::vector<std::byte> mine(static_cast<size_t>(parts.size(rank)), static_cast<std::byte>(rank));
  std::vector<std::byte> all(rank == 0 ? kCount : 0);
  collectives().gather_bytes(mine, all, parts, 0);
  if (rank != 0) return;
  for (int part = 0; part < collectives().size(); ++part) {
    for (std::byte value : parts.of(std::span(all), part)) {
      ASSERT_EQ(value, static_cast<std::byte>(part));
    }
  }
}

TEST(AllReduce, SumsInRankOrderAndTakesTheLargest) {
  const double tiny = 1e-16;
  std::vector<double> values{collectives().rank() == 0 ? 1.0 : tiny,
                             static_cast<double>(collectives().rank())};
  collectives().all_reduce_sum(values);
  EXPECT_EQ(values[0], 1.0);  // tiny ones first would have made a difference only if summed first
  EXPECT_EQ(values[1], collectives().size() * (collectives().size() - 1) / 2);
  values = {collectives().rank() == collectives().size() - 1 ? 1.0 : tiny};
  double expected = 0;
  for (int i = 0; i + 1 < collectives().size(); ++i) expected += tiny;
  expected += 1.0;
  collectives().all_reduce_sum(values);
  EXPECT_EQ(values[0], expected);

  values = {-1.0 * collectives().rank(),
            collectives().rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 3.0};
  collectives().all_reduce_max(values);
  EXPECT_EQ(values[0], 0.0);
  EXPECT_TRUE(std::isnan(values[1]));
}

TEST(Agreement, ThrowsEverywhereAndNamesTheRank) {
  collectives().agree("the plan", "7");
  try {
    collectives().agree("the plan", collectives().rank() == 1 ? "8" : "7");
    ADD_FAILURE() << "agreed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the ranks disagree on the plan: on rank 0 7, on rank 1 8");
  }
  collectives().agree_on_success("");
  try {
    collectives().agree_on_success(collectives().rank() == 1 ? "no room" : "");
    ADD_FAILURE() << "agreed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1: no room");
  }
}

class Compressed : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kCount = 300'000;
  WireFormat format = wire_format_from_name(GetParam());
  Partition parts = Partition::even(kCount, collectives().size(), 128);
  std::vector<int64_t> tensors{0, 32, 70'016, 70'048, 200'000};
  CompressedCollectives wires{collectives(), WireLayout(parts, tensors), 1};
  int rank = collectives().rank();
};

double relative_error(std::span<const float> expected, std::span<const float> got) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST_P(Compressed, GradientsArriveWithinTheFormatsPrecisionAndRepeatBitForBit) {
  std::vector<float> all = gradients_of(rank, kCount), again = all;
  wires.reduce_scatter(format, all);
  wires.reduce_scatter(format, again);
  EXPECT_EQ(all, again);
  std::vector<float> expected = summed_in_rank_order(kCount);
  double error = relative_error(parts.of(std::span<const float>(expected), rank),
                                parts.of(std::span<const float>(all), rank));
  // Half a step of 2^-4 or 2^-3 at most, about 0.6 of that over many values.
  if (format.wire == Wire::kFull) {
    EXPECT_EQ(error, 0);
  } else {
    EXPECT_LT(error, format.wire == Wire::kE4m3 ? 0.04 : 0.08);
    EXPECT_GT(error, 1e-4);
  }
}

// Integers that every format holds exactly: what is decoded adds up exactly in FP32.
TEST_P(Compressed, ValuesThatHaveCodesAddUpExactly) {
  std::vector<float> all(kCount);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<float>((i + static_cast<size_t>(rank)) % 5) - 2;
  }
  wires.reduce_scatter(format, all);
  for (int64_t i = parts.begin(rank); i < parts.begin(rank) + parts.size(rank); ++i) {
    float expected = 0;
    for (int other = 0; other < collectives().size(); ++other) {
      expected += static_cast<float>((i + other) % 5) - 2;
    }
    ASSERT_EQ(all[static_cast<size_t>(i)], expected) << i;
  }
}

TEST_P(Compressed, WhatIsNotFiniteStaysVisible) {
  std::vector<float> all(kCount, 1.0f);
  const int64_t bad = parts.begin(0) + 100;
  if (rank == 1) all[static_cast<size_t>(bad)] = std::numeric_limits<float>::infinity();
  wires.reduce_scatter(format, all);
  if (rank == 0) {
    EXPECT_FALSE(std::isfinite(all[static_cast<size_t>(bad)]));
  }
}

TEST_P(Compressed, WeightsAreTheSameBitsOnEveryRank) {
  std::vector<float> expected = gradients_of(99, kCount);
  std::vector<float> all(kCount);
  std::ranges::copy(parts.of(std::span(expected), rank), parts.of(std::span(all), rank).begin());
  wires.all_gather(format, std::span(all));
  double error = relative_error(expected, all);
  if (format.wire == Wire::kFull) {
    EXPECT_EQ(all, expected);
  } else {
    EXPECT_LT(error, format.wire == Wire::kE4m3 ? 0.04 : 0.08);
  }
  std::vector<float> rank0 = all;
  collectives().broadcast(std::as_writable_bytes(std::span(rank0)), 0);
  EXPECT_EQ(all, rank0);
}

INSTANTIATE_TEST_SUITE_P(Formats, Compressed,
                         testing::Values("full", "e4m3", "e5m2", "e4m3:tensor", "e5m2:tensor"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::ranges::replace(name, ':', '_');
                           return name;
                         });

}  // namespace
}  // namespace gnomon::test
