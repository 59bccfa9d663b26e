#include "protocol/precision_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/errors.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
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
  EXPECT_EQ(head.recipes(), "current");
  EXPECT_EQ(head[Gemm::kFprop].amax_history, 1024);

  const SitePrecision up = plan.resolve("model.layers.3.mlp.up_proj", kLayers);
  EXPECT_FALSE(up.uses_fp8(Gemm::kFprop));
  EXPECT_FALSE(up.uses_fp8(Gemm::kDgrad));
  EXPECT_TRUE(up.uses_fp8(Gemm::kWgrad));
  EXPECT_EQ(up[Gemm::kWgrad].recipe, Recipe::kDelayed);
  EXPECT_EQ(up[Gemm::kWgrad].amax_history, 16);
  EXPECT_EQ(up[Gemm::kWgrad].margin, -2);

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
    for (const GemmPrecision& it : precision.gemms) {
      EXPECT_EQ(it.recipe, recipe);
      EXPECT_EQ(it.forward_format, Format::kE4m3);
      EXPECT_EQ(it.gradient_format, Format::kE5m2);
    }
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
    ::testing::Values(
        BadPlan{"version = -2", 1, "version", "-2", "at least -1"},
        BadPlan{"version = \"7\"", 1, "version", "7", "an integer"},
        BadPlan{"\nvresion = 1", 2, "vresion", "1", "version, rule"},
        BadPlan{"[rule]\nmatch = \"*\"", 1, "rule", "table", "[[rule]]"},
        BadPlan{"[[rule]]\ngemms = \"fp8\"", 1, "rule[0].match", "missing", "glob"},
        BadPlan{"[[rule]]\nmatch = \"a{b\"", 2, "rule[0].match", "a{b", "balanced braces"},
        BadPlan{"[[rule]]\nmatch = \"\"", 2, "rule[0].match", "", "matches nothing"},
        BadPlan{"[[rule]]\nmatch = \"*\"\n[[rule]]\nmatch = \"*\"\ngemms = \"fp4\"", 5,
                "rule[1].gemms", "fp4", "\"fp8\", \"bf16\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\n\ndgrad = 8", 4, "rule[0].dgrad", "8",
                "\"fp8\", \"bf16\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\nforward_format = \"e3m4\"", 3, "rule[0].forward_format",
                "e3m4", "\"e4m3\", \"e5m2\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\ngradient_format = \"fp8\"", 3, "rule[0].gradient_format",
                "fp8", "e5m2"},
        BadPlan{"[[rule]]\nmatch = \"*\"\nrecipe = \"mx8\"", 3, "rule[0].recipe", "mx8",
                "\"current\", \"delayed\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\namax_history = 0", 3, "rule[0].amax_history", "0",
                "from 1"},
        BadPlan{"[[rule]]\nmatch = \"*\"\nmargin = 65", 3, "rule[0].margin", "65",
                "from -64 to 64"},
        BadPlan{"[[rule]]\nmatch = \"*\"\nformat = \"e4m3\"", 3, "rule[0].format", "e4m3",
                "forward_format"},
        BadPlan{"[[rule]]\nmatch = \"*\"\nmx_scale = \"down\"", 3, "rule[0].mx_scale", "down",
                "\"up\", \"ocp\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\naccumulate = \"fp22\"", 3, "rule[0].accumulate", "fp22",
                "\"fp32\", \"hopper\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\npromote_every = 48", 3, "rule[0].promote_every", "48",
                "a multiple of 32"},
        BadPlan{"[[rule]]\nmatch = \"*\"\npower_of_two = 1", 3, "rule[0].power_of_two", "1",
                "true"},
        BadPlan{"[[rule]]\nmatch = \"*\"\nrecipe = \"rowwise_gw_hp\"\nwgrad = "
                "\"fp8\"",
                4, "rule[0].wgrad", "fp8", "\"bf16\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\nonly = [\"bprop\"]", 3, "rule[0].only", "bprop",
                "\"dgrad\""},
        BadPlan{"[[rule]]\nmatch = \"*\"\nonly = []", 3, "rule[0].only", "[]", "at least one"},
        BadPlan{"[[rule]]\nmatch = \"*\"\nonly = [\"dgrad\"]\nwgrad = \"fp8\"", 4, "rule[0].wgrad",
                "fp8", "not about wgrad"},
        BadPlan{"allow_ragged_tiles = \"yes\"", 1, "allow_ragged_tiles", "yes", "true"},
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

SitePrecision only_recipe(const std::string& recipe, const std::string& more = "") {
  return PrecisionPlan::parse("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" + recipe +
                              "\"\n" + more)
      .resolve("lm_head", kLayers);
}

// The defaults of docs/recipes.md, which are those of other libraries.
TEST(PrecisionPlan, ARecipeBringsItsDefaults) {
  struct Defaults {
    const char* recipe;
    Format gradient;
    bool power_of_two;
    bool wgrad;
    int fprop_promotion;  // 0: fast accumulation
  };
  for (const Defaults& it : {Defaults{"current", Format::kE5m2, false, true, 0},
                             Defaults{"delayed", Format::kE5m2, false, true, 0},
                             Defaults{"rowwise", Format::kE4m3, true, true, 0},
                             Defaults{"rowwise_gw_hp", Format::kE4m3, true, false, 0},
                             Defaults{"block", Format::kE4m3, true, true, 128},
                             Defaults{"mx", Format::kE4m3, false, true, 128}}) {
    const SitePrecision precision = only_recipe(it.recipe);
    EXPECT_EQ(precision.recipes(), it.recipe);
    EXPECT_TRUE(precision.uses_fp8(Gemm::kFprop) && precision.uses_fp8(Gemm::kDgrad)) << it.recipe;
    EXPECT_EQ(precision.uses_fp8(Gemm::kWgrad), it.wgrad) << it.recipe;
    for (Gemm gemm : kGemms) {
      const GemmPrecision& found = precision[gemm];
      EXPECT_EQ(found.forward_format, Format::kE4m3) << it.recipe;
      EXPECT_EQ(found.gradient_format, it.gradient) << it.recipe;
      EXPECT_EQ(found.power_of_two, it.power_of_two) << it.recipe;
      EXPECT_TRUE(found.mx_scale_up) << it.recipe;
      EXPECT_EQ(found.margin, 0) << it.recipe;
      EXPECT_EQ(found.amax_history, 1024) << it.recipe;
      EXPECT_EQ(found.accumulate, Accumulate::kFp32) << it.recipe;
      EXPECT_EQ(found.promotion(gemm), gemm == Gemm::kFprop ? it.fprop_promotion : 128)
          << it.recipe << " " << gemm_name(gemm);
    }
    const PrecisionPlan plan = PrecisionPlan::fp8(recipe_from_name(it.recipe));
    EXPECT_EQ(plan.resolve("lm_head", kLayers), precision) << it.recipe;
    EXPECT_NO_THROW(plan.check_sites(kSites, kLayers)) << it.recipe;
  }
  EXPECT_THROW(recipe_from_name("tensorwise"), Error);
}

TEST(PrecisionPlan, ARuleThatNamesARecipeTakesItsDefaultsForWhatItDoesNotName) {
  const std::string first =
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"block\"\nforward_format = \"e2m3\"\n"
      "power_of_two = false\n";
  auto then = [&](const std::string& text) {
    return PrecisionPlan::parse(first + "[[rule]]\nmatch = \"*\"\n" + text)
        .resolve("lm_head", kLayers)[Gemm::kDgrad];
  };
  EXPECT_EQ(then("margin = 1").forward_format, Format::kE2m3);
  EXPECT_FALSE(then("margin = 1").power_of_two);
  EXPECT_EQ(then("recipe = \"rowwise\"").forward_format, Format::kE4m3);
  EXPECT_TRUE(then("recipe = \"rowwise\"").power_of_two);
  EXPECT_EQ(then("recipe = \"delayed\"").gradient_format, Format::kE5m2);
  EXPECT_FALSE(then("recipe = \"rowwise\"\npower_of_two = false").power_of_two);
  EXPECT_EQ(then("recipe = \"rowwise\"\ngradient_format = \"e5m2\"").gradient_format,
            Format::kE5m2);
}

TEST(PrecisionPlan, TheNewKeysAreReadAndSurviveTheRoundTrip) {
  const std::string text =
      "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"mx\"\n"
      "forward_format = \"e3m2\"\nmx_scale = \"ocp\"\n"
      "[[rule]]\nmatch = \"lm_head\"\nrecipe = \"current\"\npower_of_two = true\naccumulate = "
      "\"hopper\"\npromote_every = 0\n";
  const PrecisionPlan plan = PrecisionPlan::parse(text);
  const PrecisionPlan again = PrecisionPlan::parse(plan.to_toml());
  EXPECT_EQ(again.to_toml(), plan.to_toml());
  for (const PrecisionPlan& it : {plan, again}) {
    EXPECT_TRUE(it.allow_ragged_tiles);
    const GemmPrecision head = it.resolve("lm_head", kLayers)[Gemm::kFprop];
    EXPECT_TRUE(head.power_of_two);
    EXPECT_EQ(head.accumulate, Accumulate::kHopper);
    EXPECT_EQ(head.promote_every, 0);
    const GemmPrecision other = it.resolve(kSites[0], kLayers)[Gemm::kFprop];
    EXPECT_EQ(other.recipe, Recipe::kMx);
    EXPECT_FALSE(other.mx_scale_up);
    EXPECT_EQ(other.forward_format, Format::kE3m2);
    EXPECT_NO_THROW(it.check_sites(kSites, kLayers));
  }
}

// DeepSeek-V3's failure needs it: square blocks in dgrad alone.
TEST(PrecisionPlan, ARuleMayBeAboutSomeGemmsOnly) {
  const PrecisionPlan plan = PrecisionPlan::parse(
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\namax_history = 8\n"
      "[[rule]]\nmatch = \"lm_head\"\nonly = [\"dgrad\", \"wgrad\"]\nrecipe = \"block\"\n"
      "accumulate = \"hopper\"\n"
      "[[rule]]\nmatch = \"lm_head\"\nonly = [\"wgrad\"]\ngemms = \"bf16\"\n");
  const PrecisionPlan again = PrecisionPlan::parse(plan.to_toml());
  EXPECT_EQ(again.to_toml(), plan.to_toml());
  for (const PrecisionPlan& it : {plan, again}) {
    EXPECT_NO_THROW(it.check_sites(kSites, kLayers));
    const SitePrecision head = it.resolve("lm_head", kLayers);
    EXPECT_TRUE(head.uses_fp8(Gemm::kFprop) && head.uses_fp8(Gemm::kDgrad));
    EXPECT_FALSE(head.uses_fp8(Gemm::kWgrad));
    EXPECT_EQ(head[Gemm::kFprop].recipe, Recipe::kDelayed);
    EXPECT_EQ(head[Gemm::kFprop].amax_history, 8);
    EXPECT_EQ(head[Gemm::kFprop].accumulate, Accumulate::kFp32);
    EXPECT_EQ(head[Gemm::kDgrad].recipe, Recipe::kBlock);
    EXPECT_EQ(head[Gemm::kDgrad].gradient_format, Format::kE4m3);
    EXPECT_EQ(head[Gemm::kDgrad].accumulate, Accumulate::kHopper);
    EXPECT_EQ(head[Gemm::kDgrad].promotion(Gemm::kDgrad), 128);
    EXPECT_EQ(head.recipes(), "delayed/block");
    EXPECT_EQ(it.resolve(kSites[0], kLayers).recipes(), "delayed");
  }
}

TEST(PrecisionPlan, WhatIsWrongIsSaidOfItsGemmAndRule) {
  auto error = [](const std::string& text) {
    try {
      PrecisionPlan::parse("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n" + text)
          .check_sites(kSites, kLayers, "p.toml");
    } catch (const ConfigError& found) {
      return std::string(found.what());
    }
    return std::string("accepted");
  };
  const std::string rule = "[[rule]]\nmatch = \"lm_head\"\nonly = [\"dgrad\"]\n";
  EXPECT_THAT(error(rule + "recipe = \"block\"\n[[rule]]\nmatch = \"*\"\nonly = [\"fprop\"]\n"
                           "recipe = \"mx\"\n"),
              HasSubstr("accepted"));
  EXPECT_THAT(error(rule + "recipe = \"mx\"\npower_of_two = true\n"),
              AllOf(HasSubstr("p.toml:5"), HasSubstr("the dgrad of lm_head")));
  EXPECT_THAT(error(rule + "forward_format = \"e5m2\"\n"),
              AllOf(HasSubstr("p.toml:5"), HasSubstr("the dgrad of lm_head")));
  EXPECT_THAT(
      error("[[rule]]\nmatch = \"*\"\nrecipe = \"delayed\"\n" + rule + "amax_history = 4\n"),
      AllOf(HasSubstr("p.toml:8"), HasSubstr("1024, as for the other GEMMs of lm_head")));
}

struct Contradiction {
  const char* rule;
  const char* key;
  const char* value;
  const char* accepted;
};

class Contradictions : public ::testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, AreRefusedWithTheirRule) {
  const PrecisionPlan plan = PrecisionPlan::parse(
      std::string("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n[[rule]]\nmatch = \"lm_head\"\n") +
      GetParam().rule);
  try {
    plan.check_sites(kSites, kLayers, "p.toml");
    FAIL() << "accepted: " << GetParam().rule;
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.file(), "p.toml");
    EXPECT_EQ(error.line(), 5);
    EXPECT_EQ(error.key(), GetParam().key) << error.what();
    EXPECT_EQ(error.value(), GetParam().value) << error.what();
    EXPECT_THAT(error.accepted(), HasSubstr(GetParam().accepted));
    EXPECT_THAT(error.accepted(), HasSubstr("lm_head"));
  }
  EXPECT_NO_THROW(plan.with_bf16_sites({"lm_head"}).check_sites(kSites, kLayers));
}

INSTANTIATE_TEST_SUITE_P(
    PrecisionPlan, Contradictions,
    ::testing::Values(
        Contradiction{"recipe = \"none\"", "forward_format", "\"e4m3\"", "\"e8m3\", \"e8m4\""},
        Contradiction{"recipe = \"none\"\nforward_format = \"e8m3\"", "gradient_format", "\"e4m3\"",
                      "\"e8m6\" with recipe = \"none\""},
        Contradiction{"forward_format = \"e8m5\"", "forward_format", "\"e8m5\"",
                      "e8m3 to e8m6 need recipe = \"none\""},
        Contradiction{"recipe = \"block\"\ngradient_format = \"e8m3\"", "gradient_format",
                      "\"e8m3\"", "recipe = \"none\""},
        Contradiction{"recipe = \"delayed\"\npower_of_two = true", "power_of_two", "true", "block"},
        Contradiction{"recipe = \"mx\"\npower_of_two = true", "power_of_two", "true",
                      "no such key"},
        Contradiction{"recipe = \"block\"\nmx_scale = \"ocp\"", "mx_scale", "\"ocp\"", "only mx"},
        Contradiction{"recipe = \"mx\"\naccumulate = \"hopper\"", "accumulate", "\"hopper\"",
                      "\"fp32\""},
        Contradiction{"promote_every = 64", "promote_every", "64", "accumulate = \"hopper\""},
        Contradiction{"recipe = \"block\"\naccumulate = \"hopper\"\npromote_every = 0",
                      "promote_every", "0", "32, 64 or 128"},
        Contradiction{"recipe = \"block\"\naccumulate = \"hopper\"\npromote_every = 96",
                      "promote_every", "96", "32, 64 or 128"},
        Contradiction{"accumulate = \"hopper\"\nforward_format = \"e2m1\"", "forward_format",
                      "\"e2m1\"", "\"e4m3\", \"e5m2\""}));

TEST(PrecisionPlan, TheReducedMantissaProbeIsAPlan) {
  const GemmPrecision probe =
      only_recipe("none", "forward_format = \"e8m3\"\ngradient_format = \"e8m4\"\n")[Gemm::kWgrad];
  EXPECT_EQ(probe.recipe, Recipe::kNone);
  EXPECT_EQ(probe.forward_format, Format::kE8m3);
  EXPECT_EQ(probe.gradient_format, Format::kE8m4);
}

TEST(PrecisionPlan, LoadNamesTheMissingFile) {
  EXPECT_THROW(PrecisionPlan::load("/nonexistent/plan.toml"), SystemError);
}

}  // namespace
}  // namespace gnomon
