// Moments and communication in a plan.
#include "protocol/run_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "protocol/precision_plan.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RunPrecisionTest, TheLastRuleWinsKeyByKeyAndPinsAreOneMore) {
  const PrecisionPlan plan = PrecisionPlan::parse(R"([[rule]]
match = "*"
gemms = "fp8"
moments = "fp8"
communication = "e4m3:tensor"
gradient_communication = "e5m2"
[[rule]]
match = "*"
first_moment = "bf16"
)");
  EXPECT_EQ(plan.of_run(), (RunPrecision{"bf16", "fp8", "e5m2", "e4m3:tensor"}));
  EXPECT_EQ(PrecisionPlan::parse(plan.to_toml()).of_run(), plan.of_run());
  EXPECT_EQ(PrecisionPlan::fp8().of_run(), RunPrecision());
  const PrecisionPlan pinned =
      plan.with_bf16_sites({"communication.gradients", "lm_head", "optimizer.second_moment"});
  EXPECT_EQ(pinned.of_run(), (RunPrecision{"bf16", "fp32", "full", "e4m3:tensor"}));
  EXPECT_EQ(pinned.rules.size(), plan.rules.size() + 2);
  EXPECT_FALSE(pinned.resolve("lm_head", 4).any_fp8());
  EXPECT_TRUE(pinned.resolve("model.layers.0.mlp.down_proj", 4).any_fp8());
  EXPECT_NO_THROW(pinned.check_sites({"lm_head", "model.layers.0.mlp.down_proj"}, 4));
  EXPECT_EQ(PrecisionPlan::parse(pinned.to_toml()).of_run(), pinned.of_run());
}

TEST(RunPrecisionTest, IsOfTheWholeRunAndOfKnownValues) {
  const auto refused = [](const std::string& rule) {
    try {
      PrecisionPlan::parse("[[rule]]\n" + rule);
      return std::string("accepted");
    } catch (const ConfigError& error) {
      return error.key() + " = " + error.value() + ": " + error.accepted();
    }
  };
  EXPECT_EQ(refused("match = \"lm_head\"\nsecond_moment = \"fp8\"\n"),
            "rule[0].match = \"lm_head\": \"*\" in a rule about moments or communication: they are "
            "of the whole run");
  EXPECT_THAT(refused("match = \"*\"\nmoments = \"e4m3\"\n"),
              AllOf(HasSubstr("moments"), HasSubstr("fp32"), HasSubstr("bf16"), HasSubstr("fp8")));
  EXPECT_THAT(refused("match = \"*\"\ncommunication = \"fp8\"\n"),
              AllOf(HasSubstr("communication"), HasSubstr("full"), HasSubstr("e5m2:tensor")));
}

TEST(RunPrecisionTest, SitesAndWordsAreFoundByTheTable) {
  const RunPrecision low = {"bf16", "fp8", "e5m2", "e4m3:tensor"};
  std::vector<std::string> words;
  for (const RunChoice& choice : run_choices()) {
    EXPECT_EQ(run_choice_of_site(choice.site), &choice);
    EXPECT_FALSE(choice.is_low(RunPrecision()));
    EXPECT_TRUE(choice.is_low(low));
    words.push_back(choice.words(low));
  }
  EXPECT_THAT(words, ElementsAre("FP8 second moments", "BF16 first moments",
                                 "gradients sent as E5M2", "weights sent as E4M3"));
  EXPECT_EQ(run_choice_of_site("lm_head"), nullptr);
}

}  // namespace
}  // namespace gnomon
