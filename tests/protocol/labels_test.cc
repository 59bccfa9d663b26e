#include "protocol/labels.h"

#include <gmock/gmock.h>

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LabelsTest, AKeyIsShortAndPlain) {
  EXPECT_THAT(label_error("pool", "team-a"), IsEmpty());
  EXPECT_THAT(label_error("a.b_c-9", ""), IsEmpty());
  EXPECT_THAT(label_error(std::string(64, 'k'), "v"), IsEmpty());
  for (const std::string& bad : {std::string(), std::string(65, 'k'), std::string("Pool"),
                                 std::string("a b"), std::string("a="), std::string("ä")}) {
    EXPECT_THAT(label_error(bad, "v"), HasSubstr("a key of 1 to 64 characters")) << bad;
  }
}

TEST(LabelsTest, AValueIsPrintable) {
  EXPECT_THAT(label_error("pool", std::string(200, 'v')), IsEmpty());
  EXPECT_THAT(label_error("pool", "Zürich, rack 7 = \"old\""), IsEmpty());
  for (const std::string& bad : {std::string(201, 'v'), std::string("a\nb"), std::string("\x7f")}) {
    EXPECT_THAT(label_error("pool", bad), HasSubstr("a value of at most 200 bytes")) << bad;
  }
}

TEST(LabelsTest, WhatTheFingerprintSaysIsNobodysLabel) {
  EXPECT_THAT(label_error("backend", "cuda"), HasSubstr("fingerprint"));
  EXPECT_THAT(label_error("device", "NVIDIA H200"), HasSubstr("fingerprint"));
}

TEST(LabelsTest, ARequirementThatCannotBeReadIsRefused) {
  for (const char* bad : {"", "cuda", "=cuda", "Backend=cuda", "backend={cuda,cpu}", "pool=a\tb"}) {
    EXPECT_THAT(requirement_error(bad), HasSubstr("KEY=GLOB")) << bad;
  }
  EXPECT_THAT(requirement_error("device=NVIDIA H?00"), IsEmpty());
  EXPECT_THAT(requirement_error("pool="), IsEmpty());
}

TEST(LabelsTest, AllRequirementsMustHold) {
  const Labels labels = {{"backend", "cuda"}, {"device", "NVIDIA H200"}, {"pool", "team-a-night"}};
  EXPECT_TRUE(fits(labels, {}));
  EXPECT_TRUE(fits(labels, {"backend=cuda", "device=NVIDIA*", "pool=team-a*"}));
  EXPECT_FALSE(fits(labels, {"backend=cuda", "pool=team-b*"}));
  EXPECT_FALSE(fits(labels, {"backend=cud"})) << "a part of a value";
  EXPECT_FALSE(fits(labels, {"zone=*a"}));
  EXPECT_TRUE(fits(labels, {"zone="})) << "a label that is not there is empty text";
  EXPECT_TRUE(fits(labels, {"zone=*"}));
}

}  // namespace
}  // namespace gnomon
