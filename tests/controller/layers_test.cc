#include "controller/metrics/layers.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "protocol/precision_plan.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

const std::vector<std::string> kSites = {"model.layers.0.mlp.up_proj",
                                         "model.layers.0.mlp.down_proj",
                                         "model.layers.1.mlp.up_proj", "lm_head"};

TEST(LayersTest, ASiteBelongsToItsNumberedLayerOrToItself) {
  EXPECT_EQ(layer_of_site("model.layers.12.mlp.up_proj"), "12");
  EXPECT_EQ(layer_of_site("lm_head"), "lm_head");
  EXPECT_EQ(layer_of_site("model.layers.3"), "3");
}

TEST(LayersTest, SharesCountTheGemmsThatRunInFp8) {
  PrecisionPlan plan =
      PrecisionPlan::fp8().with_bf16_sites({"model.layers.0.mlp.down_proj", "lm_head"});
  EXPECT_THAT(layer_shares(plan.to_toml(), kSites, 2),
              ElementsAre(Pair("0", 0.5), Pair("1", 1.0), Pair("lm_head", 0.0)));
  EXPECT_THAT(layer_shares("version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\n", kSites, 2),
              ElementsAre(Pair("0", 1.0 / 3), Pair("1", 1.0 / 3), Pair("lm_head", 1.0 / 3)));
}

TEST(LayersTest, ABadPlanIsRefused) {
  EXPECT_THROW(layer_shares("[[rule]]\nfprop = 3\n", kSites, 2), ConfigError);
}

}  // namespace
}  // namespace gnomon
