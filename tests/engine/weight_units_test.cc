// What is gathered at once where ranks share the weights out, and when a pass gathers what.
#include "trainer/engine/weight_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "trainer/engine/gather_plan.h"

namespace gnomon::test {
namespace {

struct UnitShape {
  int layers, width, ffn;
  bool tied;
};

class Units : public testing::TestWithParam<UnitShape> {
 protected:
  static ModelConfig model() {
    ModelConfig config = small_model();
    config.layers = GetParam().layers;
    config.width = GetParam().width;
    config.ffn = GetParam().ffn;
    config.tie_embeddings = GetParam().tied;
    return config;
  }
  ParameterLayout layout{model()};
};

TEST_P(Units, AndTheRestAreAllElementsEachOnce) {
  const WeightUnits units(layout, 3);
  int64_t at = 0;
  for (const WeightUnit& unit : units.all()) {
    EXPECT_EQ(unit.elements.begin, at);
    at = unit.elements.end;
  }
  EXPECT_EQ(at, layout.decayed());
  EXPECT_EQ(units.rest().begin, at);
  EXPECT_EQ(units.rest().end, layout.elements());
  EXPECT_EQ(std::ssize(units.all()), GetParam().layers + (GetParam().tied ? 1 : 2));
  EXPECT_EQ(units.head() == units.embedding(), GetParam().tied);
}

TEST_P(Units, HaveEachMatrixInOneOfThem) {
  const WeightUnits units(layout, 3);
  for (int layer = 0; layer < GetParam().layers; ++layer) {
    for (int matrix : layout.layers()[static_cast<size_t>(layer)].matrices) {
      const int unit = units.unit_of(layout[matrix].offset);
      EXPECT_EQ(unit, units.layer(layer));
      EXPECT_LE(layout[matrix].offset + layout[matrix].size, units[unit].elements.end);
    }
  }
  EXPECT_EQ(units.unit_of(layout[layout.head()].offset), units.head());
}

TEST_P(Units, AreKeptEvenlyAndInWholeBlocks) {
  for (int ranks : {2, 3, 7}) {
    const WeightUnits units(layout, ranks);
    const WireShares shares = units.shares();
    EXPECT_EQ(shares.pieces(), std::ssize(units.all()) + 1);
    for (int unit = 0; unit < static_cast<int>(units.all().size()); ++unit) {
      const WeightUnit& it = units[unit];
      EXPECT_EQ(it.gathered.begin % 128, 0);
      EXPECT_TRUE(it.gathered.end % 128 == 0 || it.gathered.end == layout.elements());
      EXPECT_LE(it.gathered.begin, it.elements.begin);
      EXPECT_GE(it.gathered.end, it.elements.end);
      EXPECT_LT(it.gathered.size() - it.elements.size(), 256);
      int64_t at = it.gathered.begin, least = it.gathered.size(), most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const WireRange kept = units.kept(unit, rank);
        EXPECT_EQ(kept.begin, at);
        at = kept.end;
        least = std::min(least, kept.size());
        most = std::max(most, kept.size());
      }
      EXPECT_EQ(at, it.gathered.end);
      EXPECT_LE(most - least, 128 + 127);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(shares.range(shares.pieces() - 1, rank).begin, units.gathered_rest().begin);
      EXPECT_EQ(shares.range(shares.pieces() - 1, rank).end, layout.elements());
    }
  }
}

// Elements that share a scale of the whole numbering share one of the gather: none of a gather's
// scales is of two.
TEST_P(Units, HaveNoScaleOfTwoOfAllScales) {
  std::vector<int64_t> starts;
  for (const Parameter& parameter : layout.all()) starts.push_back(parameter.offset);
  const WireLayout all(Partition::even(layout.elements(), 3, 128), starts);
  const WeightUnits units(layout, 3);
  for (size_t unit = 0; unit < units.all().size(); ++unit) {
    const WireLayout& own = units.layouts()[static_cast<size_t>(units.layout_of()[unit])];
    const WireRange gathered = units.all()[unit].gathered;
    ASSERT_EQ(own.elements(), gathered.size());
    for (WireScale scale : {WireScale::kBlock, WireScale::kTensor}) {
      std::map<int64_t, int64_t> of_all;  // by own
      for (int64_t i = 0; i < gathered.size(); ++i) {
        const int64_t expected = all.scale_of(scale, gathered.begin + i);
        EXPECT_EQ(of_all.try_emplace(own.scale_of(scale, i), expected).first->second, expected);
      }
    }
  }
}

TEST_P(Units, OfOneShapeShareALayout) {
  const WeightUnits units(layout, 3);
  EXPECT_LE(std::ssize(units.layouts()), 4 + 2);  // parameters begin at multiples of 32
}

INSTANTIATE_TEST_SUITE_P(Shapes, Units,
                         testing::Values(UnitShape{1, 32, 48, true}, UnitShape{3, 32, 48, false},
                                         UnitShape{9, 32, 43, false}, UnitShape{9, 32, 43, true},
                                         UnitShape{2, 128, 384, false}));

std::vector<int> gathered(const GatherPlan& plan) {
  std::vector<int> units;
  for (const GatherPlan::Gather& it : plan.gathers) units.push_back(it.unit);
  return units;
}

// No gather comes too late for its use, or so early that what is still used is overwritten.
void expect_sound(const GatherPlan& plan, SlotContents contents) {
  size_t started = 0, finished = 0;
  for (size_t use = 0; use < plan.uses.size(); ++use) {
    const GatherPlan::Use& it = plan.uses[use];
    while (started < plan.gathers.size() && plan.gathers[started].from_use <= use) {
      contents[static_cast<size_t>(plan.gathers[started].slot)] = kNoUnit;
      ++started;
    }
    ASSERT_LE(it.gathers, started);
    for (; finished < it.gathers; ++finished) {
      contents[static_cast<size_t>(plan.gathers[finished].slot)] = plan.gathers[finished].unit;
    }
    ASSERT_EQ(contents[static_cast<size_t>(it.slot)], it.unit) << "use " << use;
  }
  EXPECT_EQ(finished, plan.gathers.size());
}

TEST(GatherPlan, IsSoundForEveryNumberOfLayersAndPassAfterPass) {
  for (int layers = 1; layers <= 7; ++layers) {
    for (bool tied : {false, true}) {
      SlotContents contents{kNoUnit, kNoUnit, kNoUnit};
      const int head = tied ? 0 : layers + 1;
      for (bool trains : {true, true, false, true, false, false}) {
        for (int run : {layers, 1}) {
          const SlotContents before = contents;
          expect_sound(plan_gathers(units_of_pass(run, head, trains), head, contents), before);
        }
      }
    }
  }
}

TEST(GatherPlan, GathersEachLayerOnceOnTheWayUpAndOnTheWayDownWhatIsGone) {
  SlotContents contents{kNoUnit, kNoUnit, kNoUnit};
  const auto pass = [&] { return gathered(plan_gathers(units_of_pass(5, 6, true), 6, contents)); };
  EXPECT_EQ(pass(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 3, 2, 1}));
  // The first two layers are there; the embedding gave its place to the head.
  EXPECT_EQ(pass(), (std::vector<int>{0, 3, 4, 5, 6, 3, 2, 1}));
}

TEST(GatherPlan, KeepsATiedEmbedding) {
  SlotContents contents{kNoUnit, kNoUnit, kNoUnit};
  const auto pass = [&] { return gathered(plan_gathers(units_of_pass(3, 0, true), 0, contents)); };
  EXPECT_EQ(pass(), (std::vector<int>{0, 1, 2, 3, 1}));
  EXPECT_EQ(pass(), (std::vector<int>{3, 1}));
}

TEST(GatherPlan, BeginsWithTheNextLayerWhenThisOneDoes) {
  SlotContents contents{kNoUnit, kNoUnit, kNoUnit};
  const GatherPlan plan = plan_gathers(units_of_pass(5, 6, true), 6, contents);
  for (const GatherPlan::Gather& gather : plan.gathers) {
    size_t use = 0;
    while (plan.uses[use].unit != gather.unit || use < gather.from_use) ++use;
    EXPECT_TRUE(use == 0 || gather.from_use < use) << "unit " << gather.unit;
  }
}

}  // namespace
}  // namespace gnomon::test
