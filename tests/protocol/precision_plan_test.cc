#include "protocol/precision_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/errors.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 4;
const std::vector<std::string> kSites = {"model.layers.0.self_attn.q_proj",
                                         "model.layers.0.mlp.up_proj", "model.layers.3.mlp.up_proj",
                                         "lm_head"};

constexpr const char* kPlan = R"(version = 7
[[rule]]
match = "*"
fprop = "fp8"
dgrad = "fp8"
wgrad = "fp8"
forward_format = "e4m3"
gradient_format = "e5m2"
recipe = "current"

[[rule]]
match = "model.layers.{0,last}.*"
gemms = "bf16"

[[rule]]
match = "*.up_proj"
wgrad = "fp8"
recipe = "delayed"
amax_history = 16
margin = -2
)";

TEST(PrecisionPlan, TheLastMatchingRuleWinsKeyByKey) {
  const PrecisionPlan plan = PrecisionPlan::parse(kPlan);
  EXPECT_EQ(plan.version, 7);

  const SitePrecision head = plan.resolve("lm_head", kLayers);
  EXPECT_TRUE(head.uses_fp8(Gemm::kFprop) && head.uses_fp8(Gemm::kDgrad) &&
              head.uses_fp8(Gemm::kWgrad));
  EXPECT_EQ(head.recipe, Recipe::kCurrent);
  EXPECT_EQ(head.amax_history, 1024);

  const SitePrecision up = plan.resolve("model.layers.3.mlp.up_proj", kLayers);
  EXPECT_FALSE(up.uses_fp8(Gemm::kFprop));
  EXPECT_FALSE(up.uses_fp8(Gemm::kDgrad));
  EXPECT_TRUE(up.uses_fp8(Gemm::kWgrad));
  EXPECT_EQ(up.recipe, Recipe::kDelayed);
  EXPECT_EQ(up.amax_history, 16);
  EXPECT_EQ(up.margin, -2);

  EXPECT_FALSE(plan.resolve("model.layers.0.self_attn.q_proj", kLayers).any_fp8());
  EXPECT_TRUE(plan.resolve("model.layers.1.self_attn.q_proj", kLayers).any_fp8());
}

TEST(PrecisionPlan, NoRuleMeansBf16Everywhere) {
  EXPECT_FALSE(PrecisionPlan::bf16().resolve("lm_head", kLayers).any_fp8());
  EXPECT_FALSE(PrecisionPlan::parse("version = 3").resolve("lm_head", kLayers).any_fp8());
}

TEST(PrecisionPlan, Fp8MeansEveryGemmWithTheRecipeAskedFor) {
  for (Recipe recipe : {Recipe::kCurrent, Recipe::kDelayed}) {
    const SitePrecision precision = PrecisionPlan::fp8(recipe).resolve("lm_head", kLayers);
    for (Gemm gemm : kGemms) EXPECT_TRUE(precision.uses_fp8(gemm));
    EXPECT_EQ(precision.recipe, recipe);
    EXPECT_EQ(precision.forward_format, "e4m3");
    EXPECT_EQ(precision.gradient_format, "e5m2");
  }
}

TEST(PrecisionPlan, PinningSitesChangesThemAndNothingElse) {
  const PrecisionPlan fp8 = PrecisionPlan::fp8();
  for (const std::vector<std::string>& pinned :
       {std::vector<std::string>{}, {"lm_head"}, {"lm_head", "model.layers.3.mlp.up_proj"}}) {
    const PrecisionPlan plan = fp8.with_bf16_sites(pinned);
    for (const std::string& site : kSites) {
      const bool in_bf16 = std::find(pinned.begin(), pinned.end(), site) != pinned.end();
      EXPECT_EQ(plan.resolve(site, kLayers).any_fp8(), !in_bf16) << site;
    }
    EXPECT_NO_THROW(plan.check_sites(kSites, kLayers));
  }
}

TEST(PrecisionPlan, TomlRoundTripKeepsEveryKey) {
  const PrecisionPlan plan = PrecisionPlan::parse(kPlan).with_bf16_sites({"lm_head"});
  const PrecisionPlan again = PrecisionPlan::parse(plan.to_toml());
  EXPECT_EQ(again.version, plan.version);
  ASSERT_EQ(again.rules.size(), plan.rules.size());
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    EXPECT_EQ(again.rules[i].match, plan.rules[i].match);
    EXPECT_EQ(again.rules[i].gemms, plan.rules[i].gemms);
    EXPECT_EQ(again.rules[i].forward_format, plan.rules[i].forward_format);
    EXPECT_EQ(again.rules[i].gradient_format, plan.rules[i].gradient_format);
    EXPECT_EQ(again.rules[i].recipe, plan.rules[i].recipe);
    EXPECT_EQ(again.rules[i].amax_history, plan.rules[i].amax_history);
    EXPECT_EQ(again.rules[i].margin, plan.rules[i].margin);
  }
  EXPECT_EQ(again.to_toml(), plan.to_toml());
  EXPECT_EQ(PrecisionPlan::parse(PrecisionPlan::bf16().to_toml()).rules.size(), 0u);
}

TEST(PrecisionPlan, OddCharactersInAMatchSurviveTheRoundTrip) {
  PrecisionPlan plan = PrecisionPlan::fp8();
  plan.rules[0].match = "a\"b\\c\td*";
  EXPECT_EQ(PrecisionPlan::parse(plan.to_toml()).rules[0].match, plan.rules[0].match);
}

struct BadPlan {
  const char* text;
  int line;
  const char* key;
  const char* value;
  const char* accepted;
};

class PrecisionPlanErrors : public ::testing::TestWithParam<BadPlan> {};

TEST_P(PrecisionPlanErrors, NameFileLineKeyValueAndWhatIsAccepted) {
  try {
    PrecisionPlan::parse(GetParam().text, "my-plan.toml");
    FAIL() << "accepted: " << GetParam().text;
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.file(), "my-plan.toml");
    EXPECT_EQ(error.line(), GetParam().line) << error.what();
    EXPECT_EQ(error.key(), GetParam().key) << error.what();
    EXPECT_THAT(error.value(), HasSubstr(GetParam().value));
    EXPECT_THAT(error.accepted(), HasSubstr(GetParam().accepted));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, PrecisionPlanErrors,
    ::testing::Values(BadPlan{"version = -2", 1, "version", "-2", "at least -1"},
                      BadPlan{"version = \"7\"", 1, "version", "7", "an integer"},
                      BadPlan{"\nvresion = 1", 2, "vresion", "1", "version, rule"},
                      BadPlan{"[rule]\nmatch = \"*\"", 1, "rule", "table", "[[rule]]"},
                      BadPlan{"[[rule]]\ngemms = \"fp8\"", 1, "rule[0].match", "missing", "glob"},
                      BadPlan{"[[rule]]\nmatch = \"a{b\"", 2, "rule[0].match", "a{b",
                              "balanced braces"},
                      BadPlan{"[[rule]]\nmatch = \"\"", 2, "rule[0].match", "", "matches nothing"},
                      BadPlan{"[[rule]]\nmatch = \"*\"\n[[rule]]\nmatch = \"*\"\ngemms = \"fp4\"",
                              5, "rule[1].gemms", "fp4", "\"fp8\", \"bf16\""},
                      BadPlan{"[[rule]]\nmatch = \"*\"\n\ndgrad = 8", 4, "rule[0].dgrad", "8",
                              "\"fp8\", \"bf16\""},
                      BadPlan{"[[rule]]\nmatch = \"*\"\nforward_format = \"e3m4\"", 3,
                              "rule[0].forward_format", "e3m4", "\"e4m3\", \"e5m2\""},
                      BadPlan{"[[rule]]\nmatch = \"*\"\ngradient_format = \"fp8\"", 3,
                              "rule[0].gradient_format", "fp8", "e5m2"},
                      BadPlan{"[[rule]]\nmatch = \"*\"\nrecipe = \"mx\"", 3, "rule[0].recipe", "mx",
                              "\"current\", \"delayed\""},
                      BadPlan{"[[rule]]\nmatch = \"*\"\namax_history = 0", 3,
                              "rule[0].amax_history", "0", "from 1"},
                      BadPlan{"[[rule]]\nmatch = \"*\"\nmargin = 65", 3, "rule[0].margin", "65",
                              "from -64 to 64"},
                      BadPlan{"[[rule]]\nmatch = \"*\"\nformat = \"e4m3\"", 3, "rule[0].format",
                              "e4m3", "forward_format"},
                      BadPlan{"allow_e5m2_e5m2 = 1", 1, "allow_e5m2_e5m2", "1", "true"},
                      BadPlan{"version = 1\nversion = ", 2, "syntax", "", "TOML"}));

TEST(PrecisionPlan, ARuleThatMatchesNoSiteIsRefusedWithItsLine) {
  const PrecisionPlan plan = PrecisionPlan::parse(
      "[[rule]]\nmatch = \"*\"\n\n[[rule]]\nmatch = \"model.layer.0.*\"\ngemms = \"fp8\"\n");
  try {
    plan.check_sites(kSites, kLayers, "p.toml");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.line(), 5);
    EXPECT_THAT(error.value(), HasSubstr("model.layer.0.*"));
    EXPECT_THAT(error.accepted(), HasSubstr("model.layers.0.self_attn.q_proj"));
  }
  EXPECT_NO_THROW(PrecisionPlan::parse(kPlan).check_sites(kSites, kLayers));
}

// No hardware multiplies E5M2 by E5M2. Both operands of fprop have the forward format.
struct FormatChoice {
  const char* gemm;  // the one in FP8
  const char* forward;
  const char* gradient;
  bool exists;
};

class Formats : public ::testing::TestWithParam<FormatChoice> {};

TEST_P(Formats, ThatNoHardwareMultipliesAreRefusedUnlessThePlanAllowsThem) {
  const FormatChoice& choice = GetParam();
  const std::string rules = fmt::format(
      "[[rule]]\nmatch = \"lm_head\"\n{} = \"fp8\"\n\n[[rule]]\nmatch = \"*\"\n"
      "forward_format = \"{}\"\ngradient_format = \"{}\"\n",
      choice.gemm, choice.forward, choice.gradient);
  const PrecisionPlan plan = PrecisionPlan::parse(rules);
  const PrecisionPlan allowed = PrecisionPlan::parse("allow_e5m2_e5m2 = true\n" + rules);
  EXPECT_NO_THROW(allowed.check_sites(kSites, kLayers));
  EXPECT_NO_THROW(PrecisionPlan::parse(allowed.to_toml()).check_sites(kSites, kLayers));
  EXPECT_NO_THROW(allowed.with_bf16_sites({kSites[0]}).check_sites(kSites, kLayers));
  EXPECT_NO_THROW(plan.with_bf16_sites({"lm_head"}).check_sites(kSites, kLayers));
  if (choice.exists) {
    EXPECT_NO_THROW(plan.check_sites(kSites, kLayers));
    return;
  }
  try {
    plan.check_sites(kSites, kLayers, "p.toml");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.file(), "p.toml");
    EXPECT_EQ(error.line(), 6) << "the rule that chose the format";
    EXPECT_EQ(error.key(), "forward_format");
    EXPECT_THAT(error.value(), HasSubstr("e5m2"));
    EXPECT_THAT(error.accepted(), HasSubstr(fmt::format("the {} of lm_head", choice.gemm)));
    EXPECT_THAT(error.accepted(), HasSubstr("allow_e5m2_e5m2 = true"));
  }
}

INSTANTIATE_TEST_SUITE_P(PrecisionPlan, Formats,
                         ::testing::Values(FormatChoice{"fprop", "e4m3", "e5m2", true},
                                           FormatChoice{"fprop", "e5m2", "e4m3", false},
                                           FormatChoice{"fprop", "e5m2", "e5m2", false},
                                           FormatChoice{"dgrad", "e4m3", "e5m2", true},
                                           FormatChoice{"dgrad", "e5m2", "e4m3", true},
                                           FormatChoice{"dgrad", "e5m2", "e5m2", false},
                                           FormatChoice{"wgrad", "e4m3", "e4m3", true},
                                           FormatChoice{"wgrad", "e5m2", "e4m3", true},
                                           FormatChoice{"wgrad", "e5m2", "e5m2", false}));

TEST(PrecisionPlan, LoadNamesTheMissingFile) {
  EXPECT_THROW(PrecisionPlan::load("/nonexistent/plan.toml"), SystemError);
}

}  // namespace
}  // namespace gnomon
