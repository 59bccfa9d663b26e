// Two sources, and whether they say the same.
#include "controller/decide/agreement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "controller/decide/events.h"

namespace gnomon::decide {
namespace {

Witness witness_with(const std::string& verifier, double run_end, double bf16_end) {
  Witness witness;
  witness.verifier = verifier;
  witness.fingerprint_equal = true;
  witness.measured.reference = bf16_end;
  witness.measured.gap = run_end - bf16_end;
  witness.measured.d_percent = 100 * (run_end - bf16_end) / bf16_end;
  witness.end_hash = "abc";
  return witness;
}

TEST(AgreementTest, BetweenEqualDevicesOneBitIsADifference) {
  const Witness one = witness_with("a", 3.01, 3.0);
  EXPECT_TRUE(compare_witnesses(one, witness_with("b", 3.01, 3.0), 1).agrees);
  EXPECT_FALSE(compare_witnesses(one, witness_with("b", 3.01, std::nextafter(3.0, 4)), 1).agrees);
  EXPECT_FALSE(compare_witnesses(one, witness_with("b", std::nextafter(3.01, 4), 3.0), 1).agrees);
  Witness other_weights = witness_with("b", 3.01, 3.0);
  other_weights.end_hash = "abd";
  EXPECT_FALSE(compare_witnesses(one, other_weights, 1).agrees);
}

TEST(AgreementTest, TwoDevicesOfOneKindAreComparedBitByBitWhateverTheRunsIs) {
  Witness one = witness_with("a", 3.01, 3.0), other = witness_with("b", 3.01, 3.0 + 1e-9);
  one.fingerprint_equal = other.fingerprint_equal = false;
  EXPECT_TRUE(compare_witnesses(one, other, 0.1).agrees);
  one.fingerprint = other.fingerprint = "kind";
  EXPECT_FALSE(compare_witnesses(one, other, 0.1).agrees);
}

TEST(AgreementTest, OtherDevicesMayDifferByTheNoise) {
  Witness one = witness_with("a", 3.01, 3.0), other = witness_with("b", 3.01, 2.995);
  other.fingerprint_equal = false;
  EXPECT_TRUE(compare_witnesses(one, other, 0.2).agrees);
  EXPECT_FALSE(compare_witnesses(one, other, 0.1).agrees);
  other = witness_with("b", 3.06, 3.05);  // the same D from another loss
  other.fingerprint_equal = false;
  EXPECT_FALSE(compare_witnesses(one, other, 0.2).agrees);
}

TEST(AgreementTest, AStepIsCompared) {
  Witness one, other;
  one.suffers = true;
  other.suffers = false;
  EXPECT_FALSE(compare_witnesses(one, other, 1).agrees);
  other.suffers = true;
  EXPECT_TRUE(compare_witnesses(one, other, 1).agrees);
}

TEST(AgreementTest, TheTrainersReportsBearAGapOutOrDoNot) {
  EXPECT_TRUE(borne_out(0.9, 1.4));
  EXPECT_FALSE(borne_out(0.05, 1.4));
  EXPECT_FALSE(borne_out(-0.3, 1.4));
  EXPECT_FALSE(borne_out(std::nullopt, 1.4));
  EXPECT_FALSE(borne_out(0.05, INFINITY));
}

TEST(AgreementTest, AListOfVerifiersToAvoid) {
  EXPECT_FALSE(avoids("", "a"));
  EXPECT_FALSE(avoids("ab\nc", "a"));
  EXPECT_TRUE(avoids("ab\nc", "c"));
  EXPECT_TRUE(avoids("ab\nc", "ab"));
  EXPECT_FALSE(avoids("ab", ""));
}

}  // namespace
}  // namespace gnomon::decide
