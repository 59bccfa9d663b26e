#include "protocol/site_glob.h"

#include <gtest/gtest.h>

#include "protocol/precision_plan.h"

namespace gnomon {
namespace {

struct Case {
  const char* glob;
  const char* site;
  bool matches;
};

class SiteGlob : public ::testing::TestWithParam<Case> {};

TEST_P(SiteGlob, MatchesWholeNamesOnly) {
  constexpr int kTwelveLayers = 12;
  EXPECT_EQ(site_matches(GetParam().glob, GetParam().site, kTwelveLayers), GetParam().matches)
      << GetParam().glob << " on " << GetParam().site;
}

constexpr const char* kUp = "model.layers.11.mlp.up_proj";

INSTANTIATE_TEST_SUITE_P(
    Cases, SiteGlob,
    ::testing::Values(Case{"*", kUp, true}, Case{"*", "", true}, Case{"lm_head", "lm_head", true},
                      Case{"lm_head", "lm_heads", false}, Case{"lm_hea", "lm_head", false},
                      Case{"model.layers.11.*", kUp, true}, Case{"model.layers.1.*", kUp, false},
                      Case{"model.layers.1*", kUp, true}, Case{"*.up_proj", kUp, true},
                      Case{"*.down_proj", kUp, false}, Case{"model.*.mlp.*", kUp, true},
                      Case{"*mlp*mlp*", kUp, false}, Case{"**", kUp, true},
                      Case{"model.layers.??.mlp.up_proj", kUp, true},
                      Case{"model.layers.?.mlp.up_proj", kUp, false},
                      Case{"model.layers.{0,last}.*", kUp, true},
                      Case{"model.layers.{0,last}.*", "model.layers.0.mlp.up_proj", true},
                      Case{"model.layers.{0,last}.*", "model.layers.1.mlp.up_proj", false},
                      Case{"model.layers.{last}.*", "model.layers.last.mlp.up_proj", false},
                      Case{"model.layers.last.*", kUp, false}, Case{"*.{up,down}_proj", kUp, true},
                      Case{"*.{gate,down}_proj", kUp, false},
                      Case{"model.layers.{1,11}.{mlp,self_attn}.{up_proj,q_proj}", kUp, true},
                      Case{"{lm_head,model.layers.11.*}", kUp, true},
                      Case{"{a,}lm_head", "lm_head", true},
                      Case{"model.layers.11.mlp.up_proj?", kUp, false}, Case{"", "", false}));

TEST(SiteGlobErrors, SaysWhatIsWrong) {
  EXPECT_EQ(glob_error("model.*.{a,b}"), "");
  EXPECT_NE(glob_error(""), "");
  EXPECT_NE(glob_error("{a"), "");
  EXPECT_NE(glob_error("a}"), "");
  EXPECT_NE(glob_error("{a,{b}}"), "");
}

TEST(SiteGlobErrors, BoundsTheNumberOfAlternatives) {
  std::string glob;
  for (int i = 0; i < 12; ++i) glob += "{a,b}";
  EXPECT_EQ(glob_error(glob), "");
  EXPECT_EQ(expand_glob(glob, 1).size(), kGlobAlternativesMax);
  EXPECT_NE(glob_error(glob + "{a,b}"), "");
}

TEST(SiteGlobErrors, ManyStarsStayFast) {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "*a";
  EXPECT_FALSE(simple_glob_matches(glob + "b", std::string(20000, 'a')));
}

}  // namespace
}  // namespace gnomon
