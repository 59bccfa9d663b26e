// What ranks send each other of weights that they share out, asserted on every rank: from those who
// make them to those who keep them, and together again.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "kernels/comm/wire_shares.h"
#include "kernels/comm/wires.h"
#include "kernels/side_gathers.h"
#include "tests/ranks/ranks.h"

namespace gnomon::test {
namespace {

constexpr int64_t kCount = 20'000 + 32;

// Blocks of very unlike sizes, some zero or tiny.
template <class E>
std::vector<E> weights_of(int64_t count) {
  std::vector<E> values;
  for (int64_t i = 0; i < count; ++i) {
    const float unit = philox_uniform(philox(5, 3, static_cast<uint64_t>(i))[0]) - 0.5f;
    const int64_t block = i / 128;
    float value = unit * std::exp2(static_cast<float>(i % 13) - 6);
    if (block % 9 == 1) value = 0;
    if (block % 9 == 2) value *= 1e-34f;
    if (block % 9 == 3) value *= 1e20f;
    if (i % 7 == 0) value = -0.0f;
    values.push_back(from_float<E>(value));
  }
  return values;
}

template <class E>
void expect_same_bits(std::span<const E> found, std::span<const E> expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(to_float(found[i])),
              std::bit_cast<uint32_t>(to_float(expected[i])))
        << i << ": " << to_float(found[i]) << " for " << to_float(expected[i]);
  }
}

class WeightWires : public testing::TestWithParam<std::string> {
 protected:
  // A unit whose borders are whole blocks, with tensors that begin inside of blocks.
  static constexpr WireRange kUnit{128 * 5, 128 * 77};
  static WireLayout whole() {
    return {Partition::even(kCount, collectives().size(), 128), {0, 96, 4128, 12'320, 19'000}};
  }
  static WireLayout of_unit() {
    return {Partition::even(kUnit.size(), collectives().size(), 128), {0, 4128 - 640}};
  }
  static WireRange kept(int rank) {
    const Partition parts = of_unit().parts();
    return {kUnit.begin + parts.begin(rank), kUnit.begin + parts.begin(rank) + parts.size(rank)};
  }
  static WireShares shares() {
    std::vector<std::vector<WireRange>> keeps(2);
    for (int rank = 0; rank < collectives().size(); ++rank) {
      keeps[0].push_back(kept(rank));
      keeps[1].push_back({kUnit.end, kCount});
    }
    return WireShares(std::move(keeps));
  }
  template <class E>
  void expect_the_same_at_both_ends();

  WireFormat format = wire_format_from_name(GetParam());
  int rank = collectives().rank();
};

template <class E>
void WeightWires::expect_the_same_at_both_ends() {
  const WireLayout layout = whole();
  const auto wires = make_host_wires(collectives(), layout, 1);
  const std::vector<E> made = weights_of<E>(kCount);
  std::vector<E> everywhere(made.size());
  std::ranges::copy(layout.parts().of(std::span(made), rank),
                    layout.parts().of(std::span(everywhere), rank).begin());
  wires->all_gather(format, std::span(everywhere));

  const WireShares all_shares = shares();
  std::vector<E> own(static_cast<size_t>(all_shares.kept(rank)));
  wires->redistribute(format, all_shares, layout.parts().of(std::span(made), rank), std::span(own));
  const auto of_all = [&](const WireRange& range) {
    return std::span<const E>(everywhere)
        .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
  };
  const auto of_unit_size = static_cast<size_t>(kept(rank).size());
  expect_same_bits(std::span<const E>(own).first(of_unit_size), of_all(kept(rank)));
  expect_same_bits(std::span<const E>(own).subspan(of_unit_size), of_all({kUnit.end, kCount}));

  // Gathered, and gathered again in other codes than those that made them, they stay.
  std::vector<E> slot(static_cast<size_t>(kUnit.size()));
  const WireLayout unit = of_unit();
  std::ranges::copy(std::span(own).first(of_unit_size),
                    unit.parts().of(std::span(slot), rank).begin());
  const auto gathers = make_host_side_gathers(collectives(), {unit});
  for (int again = 0; again < 2; ++again) {
    gathers->start(0, format, std::span(slot));
    gathers->finish();
    expect_same_bits(std::span<const E>(slot), of_all(kUnit));
  }
}

TEST_P(WeightWires, BringKeepersWhatEveryRankWouldHaveAndGatheringChangesNothing) {
  expect_the_same_at_both_ends<bf16>();
  expect_the_same_at_both_ends<float>();
}

TEST_P(WeightWires, BringABlockThatIsNotFiniteAsNan) {
  const WireLayout layout = whole();
  const auto wires = make_host_wires(collectives(), layout, 1);
  std::vector<float> made = weights_of<float>(kCount);
  made[static_cast<size_t>(kUnit.begin) + 7] = INFINITY;
  std::vector<float> own(static_cast<size_t>(shares().kept(rank)));
  wires->redistribute(format, shares(), layout.parts().of(std::span<const float>(made), rank),
                      std::span(own));
  if (kept(rank).begin != kUnit.begin) return;
  EXPECT_FALSE(std::isfinite(own[7]));
  EXPECT_EQ(std::isfinite(own[8]), format.wire == Wire::kFull);
}

INSTANTIATE_TEST_SUITE_P(Formats, WeightWires,
                         testing::Values("full", "e4m3", "e5m2", "e4m3:tensor", "e5m2:tensor"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::ranges::replace(name, ':', '_');
                           return name;
                         });

// They begin and end in their order while this thread does other things.
TEST(SideGathers, GoOnBesideTheThreadThatStartsThem) {
  constexpr int64_t kElements = 128 * 300;
  const Partition parts = Partition::even(kElements, collectives().size(), 128);
  const auto gathers = make_host_side_gathers(
      collectives(),
      {WireLayout(parts, {0}), WireLayout(Partition::even(256, collectives().size(), 128), {0})});
  std::vector<std::vector<float>> slots(4, std::vector<float>(kElements));
  std::vector<std::vector<bf16>> small(4, std::vector<bf16>(256));
  for (int round = 0; round < 20; ++round) {
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      const float value = static_cast<float>(100 * round) + static_cast<float>(slot);
      std::ranges::fill(parts.of(std::span(slots[slot]), collectives().rank()), value);
      gathers->start(0, {}, std::span(slots[slot]));
      gathers->start(1, {}, std::span(small[slot]));
      // Ranks are not at the same place.
      if ((round + collectives().rank()) % 5 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      gathers->finish();
      const float value = static_cast<float>(100 * round) + static_cast<float>(slot);
      EXPECT_EQ(slots[slot], std::vector<float>(kElements, value)) << round;
      gathers->finish();
    }
  }
  // Nothing is under way: the ranks may speak again.
  collectives().barrier();
}

}  // namespace
}  // namespace gnomon::test
