#include "trainer/engine/scaling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "base/errors.h"
#include "base/philox.h"

namespace gnomon {
namespace {

SitePrecision precision(Recipe recipe, bool fprop = true, bool dgrad = true, bool wgrad = true) {
  GemmPrecision one;
  one.recipe = recipe;
  one.amax_history = 4;
  SitePrecision result{{one, one, one}};
  result[Gemm::kFprop].fp8 = fprop;
  result[Gemm::kDgrad].fp8 = dgrad;
  result[Gemm::kWgrad].fp8 = wgrad;
  return result;
}

const auto kNeverFrozen = [](int, TensorRole) { return false; };

TEST(AmaxHistory, HasTheMaximumOfAPlainWindow) {
  for (int length : {1, 2, 3, 7, 50}) {
    AmaxHistory history;
    std::deque<float> window;
    for (uint64_t i = 0; i < 400; ++i) {
      float amax = 0.5f + std::ceil(20 * philox_uniform(philox(3, 0, i)[0]));
      history.push(amax, length);
      window.push_back(amax);
      if (window.size() > static_cast<size_t>(length)) window.pop_front();
      ASSERT_EQ(history.max(), *std::ranges::max_element(window))
          << "length " << length << ", push " << i;
      ASSERT_LE(history.entries().size(), static_cast<size_t>(length));
    }
  }
}

TEST(AmaxHistory, RestoresToTheSameFuture) {
  AmaxHistory history;
  for (float amax : {5.0f, 9.0f, 3.0f, 3.0f, 2.0f}) history.push(amax, 4);
  ASSERT_EQ(history.entries().size(), 3u);  // of two equal ones the newer does
  AmaxHistory restored;
  restored.restore(history.pushes(), history.entries());
  EXPECT_EQ(restored, history);
  for (float amax : {1.0f, 1.5f, 0.5f}) {
    history.push(amax, 4);
    restored.push(amax, 4);
    EXPECT_EQ(restored.max(), history.max());
  }
}

TEST(AmaxHistory, RefusesEntriesThatNoPushesLeave) {
  AmaxHistory history;
  EXPECT_THROW(history.restore(2, {{0, 1.0f}, {1, 2.0f}}), Error);  // rising
  EXPECT_THROW(history.restore(2, {{1, 2.0f}, {1, 1.0f}}), Error);  // one index twice
  EXPECT_THROW(history.restore(1, {{1, 2.0f}}), Error);             // from the future
  EXPECT_THROW(history.restore(3, {{0, 2.0f}}), Error);             // the newest is missing
  EXPECT_THROW(history.restore(1, {{0, -1.0f}}), Error);
  EXPECT_THROW(history.restore(1, {{0, std::numeric_limits<float>::infinity()}}), Error);
  EXPECT_THROW(history.restore(3, {}), Error);
  EXPECT_NO_THROW(history.restore(0, {}));
  EXPECT_NO_THROW(history.restore(3, {{1, 2.0f}, {2, 1.0f}}));
}

// tile rows, tile columns and rule of every tensor of every GEMM, by recipe.
struct Expected {
  TensorRole role;
  Gemm gemm;
  TileShape tile;
};

std::vector<Expected> operands(TileShape fprop_x, TileShape fprop_w, TileShape dgrad_dy,
                               TileShape dgrad_w, TileShape wgrad_dy, TileShape wgrad_x) {
  return {
      {TensorRole::kInput, Gemm::kFprop, fprop_x},     {TensorRole::kWeight, Gemm::kFprop, fprop_w},
      {TensorRole::kGradient, Gemm::kDgrad, dgrad_dy}, {TensorRole::kWeight, Gemm::kDgrad, dgrad_w},
      {TensorRole::kGradient, Gemm::kWgrad, wgrad_dy}, {TensorRole::kInput, Gemm::kWgrad, wgrad_x}};
}

TEST(GemmsAndRoles, NamesAreReadBack) {
  for (Gemm gemm : kGemms) EXPECT_EQ(gemm_from_name(gemm_name(gemm)), gemm);
  for (TensorRole role : kAllTensorRoles) {
    EXPECT_EQ(tensor_role_from_name(tensor_role_name(role)), role);
  }
  EXPECT_EQ(gemm_name(Gemm::kDgrad), "dgrad");
  EXPECT_EQ(tensor_role_name(TensorRole::kGradient), "gradient");
  EXPECT_THROW(gemm_from_name("backward"), Error);
  EXPECT_THROW(tensor_role_from_name("output"), Error);
}

TEST(QuantizerFor, TilesRunAlongWhatTheGemmSumsOver) {
  const TileShape all{0, 0}, row{1, 0}, column{0, 1}, row128{1, 128}, column128{128, 1},
      square{128, 128}, row32{1, 32}, column32{32, 1}, row64{1, 64}, column64{64, 1},
      square64{64, 64};
  struct Case {
    Recipe recipe;
    ScaleRule rule;
    std::vector<Expected> operands;
  };
  const std::vector<Case> cases = {
      {Recipe::kCurrent, ScaleRule::kFp32, operands(all, all, all, all, all, all)},
      {Recipe::kDelayed, ScaleRule::kGiven, operands(all, all, all, all, all, all)},
      {Recipe::kNone, ScaleRule::kNone, operands(all, all, all, all, all, all)},
      {Recipe::kRowwise, ScaleRule::kPowerOfTwo, operands(row, row, row, column, column, column)},
      {Recipe::kBlock, ScaleRule::kPowerOfTwo,
       operands(row128, square, row128, square, column128, column128)},
      {Recipe::kTile64, ScaleRule::kFp32,
       operands(row64, square64, row64, square64, column64, column64)},
      {Recipe::kMx, ScaleRule::kPowerOfTwo,
       operands(row32, row32, row32, column32, column32, column32)}};
  for (const Case& it : cases) {
    GemmPrecision site;
    site.choose(it.recipe);
    for (const Expected& expected : it.operands) {
      Quantizer found = quantizer_for(site, expected.role, expected.gemm);
      const bool hybrid = it.recipe == Recipe::kCurrent || it.recipe == Recipe::kDelayed;
      const Format format =
          hybrid && expected.role == TensorRole::kGradient ? Format::kE5m2 : Format::kE4m3;
      EXPECT_EQ(found, (Quantizer{format, expected.tile, it.rule}))
          << recipe_name(it.recipe) << " " << tensor_role_name(expected.role) << " "
          << gemm_name(expected.gemm);
    }
  }
}

TEST(QuantizerFor, RowwiseWithHighPrecisionWgradTakesTheWholeWeightForDgrad) {
  GemmPrecision site;
  site.choose(Recipe::kRowwiseGwHp);
  EXPECT_EQ(quantizer_for(site, TensorRole::kInput, Gemm::kFprop).tile, (TileShape{1, 0}));
  EXPECT_EQ(quantizer_for(site, TensorRole::kWeight, Gemm::kFprop).tile, (TileShape{1, 0}));
  EXPECT_EQ(quantizer_for(site, TensorRole::kGradient, Gemm::kDgrad).tile, (TileShape{1, 0}));
  EXPECT_EQ(quantizer_for(site, TensorRole::kWeight, Gemm::kDgrad).tile, (TileShape{0, 0}));
}

TEST(QuantizerFor, KeysOfThePlanChooseRuleAndFormat) {
  GemmPrecision site;
  auto rule = [&](Recipe recipe, bool power_of_two, bool up) {
    site.choose(recipe);
    site.power_of_two = power_of_two;
    site.mx_scale_up = up;
    return quantizer_for(site, TensorRole::kInput, Gemm::kFprop).rule;
  };
  EXPECT_EQ(rule(Recipe::kCurrent, true, true), ScaleRule::kPowerOfTwo);
  EXPECT_EQ(rule(Recipe::kBlock, false, true), ScaleRule::kFp32);
  EXPECT_EQ(rule(Recipe::kRowwise, false, true), ScaleRule::kFp32);
  EXPECT_EQ(rule(Recipe::kMx, false, false), ScaleRule::kOcpFloor);
  site.forward_format = Format::kE3m2;
  site.gradient_format = Format::kE2m1;
  EXPECT_EQ(quantizer_for(site, TensorRole::kWeight, Gemm::kDgrad).format, Format::kE3m2);
  EXPECT_EQ(quantizer_for(site, TensorRole::kGradient, Gemm::kWgrad).format, Format::kE2m1);
}

TEST(ScalingState, MicroBatchesLeaveOneEntryWithTheirMaximum) {
  ScalingState scaling(1);
  std::vector<SitePrecision> sites = {precision(Recipe::kDelayed)};
  scaling.observe(0, TensorRole::kInput, 2.0f);
  scaling.observe(0, TensorRole::kInput, 5.0f);
  scaling.observe(0, TensorRole::kInput, 3.0f);
  EXPECT_TRUE(scaling.history(0, TensorRole::kInput).empty());  // not before the step ends
  scaling.finish_step(sites, kNeverFrozen);
  EXPECT_EQ(scaling.history(0, TensorRole::kInput).max(), 5.0f);
  EXPECT_EQ(scaling.history(0, TensorRole::kInput).pushes(), 1);
  scaling.finish_step(sites, kNeverFrozen);
  EXPECT_EQ(scaling.history(0, TensorRole::kInput).pushes(), 1);  // nothing observed, nothing added
}

TEST(ScalingState, UselessAmaxesAreNotRecorded) {
  ScalingState scaling(1);
  std::vector<SitePrecision> sites = {precision(Recipe::kDelayed)};
  for (float amax :
       {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    scaling.observe(0, TensorRole::kWeight, amax);
    scaling.finish_step(sites, kNeverFrozen);
  }
  EXPECT_TRUE(scaling.history(0, TensorRole::kWeight).empty());
}

TEST(ScalingState, AFrozenHistoryStopsAfterItsFirstEntry) {
  ScalingState scaling(2);
  std::vector<SitePrecision> sites(2, precision(Recipe::kDelayed));
  auto frozen = [](int site, TensorRole role) { return site == 1 && role == TensorRole::kInput; };
  for (float amax : {1.0f, 4.0f, 8.0f}) {
    for (int site : {0, 1}) {
      scaling.observe(site, TensorRole::kInput, amax);
      scaling.observe(site, TensorRole::kWeight, amax);
    }
    scaling.finish_step(sites, frozen);
  }
  EXPECT_EQ(scaling.history(1, TensorRole::kInput).max(), 1.0f);
  EXPECT_EQ(scaling.history(1, TensorRole::kWeight).max(), 8.0f);
  EXPECT_EQ(scaling.history(0, TensorRole::kInput).max(), 8.0f);
}

TEST(ScalingState, AChangeOfPlanKeepsOnlyWhatStaysDelayed) {
  auto filled = [] {
    ScalingState scaling(1);
    for (TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradient}) {
      scaling.history(0, role).push(2.0f, 4);
    }
    return scaling;
  };
  auto kept = [&](const SitePrecision& to) {
    ScalingState scaling = filled();
    scaling.change({to});
    std::string result;
    for (TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradient}) {
      result += scaling.history(0, role).empty() ? '-' : '+';
    }
    return result;
  };
  SitePrecision delayed = precision(Recipe::kDelayed);
  SitePrecision longer = delayed;
  for (GemmPrecision& gemm : longer.gemms) gemm.amax_history = 8;
  EXPECT_EQ(kept(delayed), "+++");
  EXPECT_EQ(kept(longer), "+++");
  EXPECT_EQ(kept(precision(Recipe::kCurrent)), "---");
  EXPECT_EQ(kept(SitePrecision{}), "---");
  EXPECT_EQ(kept(precision(Recipe::kDelayed, true, false, false)), "++-");
  EXPECT_EQ(kept(precision(Recipe::kDelayed, false, true, false)), "-++");
  EXPECT_EQ(kept(precision(Recipe::kDelayed, false, false, true)), "+-+");
  SitePrecision one = precision(Recipe::kCurrent);
  one[Gemm::kDgrad].recipe = Recipe::kDelayed;
  EXPECT_EQ(kept(one), "-++") << "what the one delayed GEMM reads";
}

}  // namespace
}  // namespace gnomon
