// The comparison of a device's FP8 sums with the emulation, with emulations of other rules in the
// device's place: each has to be recognised.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "base/errors.h"
#include "lab/accumulation/comparison.h"
#include "lab/accumulation/report.h"

namespace gnomon {
namespace {

constexpr DataKind kKinds[] = {DataKind::kUniform, DataKind::kPositive, DataKind::kWideRange,
                               DataKind::kCancelling, DataKind::kHugeAmongTiny};
constexpr ComparisonOptions kOptions{7, 16, 2};

ProblemSpec spec(int64_t k, DataKind kind, Format a_format = Format::kE4m3) {
  return {48, 32, k, a_format, Format::kE4m3, kind};
}

std::vector<ProblemSpec> problems() {
  std::vector<ProblemSpec> specs;
  for (DataKind kind : kKinds) {
    specs.push_back(spec(144, kind, Format::kE5m2));
    specs.push_back(spec(528, kind));
  }
  return specs;
}

Comparison compare_with(ProductDevice& device) {
  size_t called = 0;
  Comparison found = compare(device, problems(), candidate_variants(), kOptions,
                             [&](const ProblemSpec&, size_t at, size_t count) {
                               EXPECT_EQ(at, called++);
                               EXPECT_EQ(count, 10u);
                             });
  EXPECT_EQ(called, 10u);
  return found;
}

TEST(AccumulationProblems, AreFiniteAndTheSameForTheSameSeedOnly) {
  for (DataKind kind : kKinds) {
    for (Format a_format : {Format::kE4m3, Format::kE5m2}) {
      const ProductProblem problem = make_problem(spec(80, kind, a_format), 5);
      ASSERT_EQ(problem.a.size(), 48u * 80);
      ASSERT_EQ(problem.b.size(), 32u * 80);
      for (uint8_t code : problem.a) ASSERT_TRUE(std::isfinite(decode(a_format, code)));
      for (uint8_t code : problem.b) ASSERT_TRUE(std::isfinite(decode(Format::kE4m3, code)));
      EXPECT_EQ(make_problem(spec(80, kind, a_format), 5).a, problem.a);
      EXPECT_NE(make_problem(spec(80, kind, a_format), 6).a, problem.a);
    }
  }
}

// Largest term, sum of magnitudes and sum of the first output's terms.
struct Terms {
  double largest = 0, magnitudes = 0, sum = 0;
};
Terms terms_of(const ProductProblem& problem) {
  Terms found;
  for (size_t t = 0; t < static_cast<size_t>(problem.spec.k); ++t) {
    const double term = static_cast<double>(decode(problem.spec.a_format, problem.a[t])) *
                        static_cast<double>(decode(problem.spec.b_format, problem.b[t]));
    found.largest = std::max(found.largest, std::abs(term));
    found.magnitudes += std::abs(term);
    found.sum += term;
  }
  return found;
}

TEST(AccumulationProblems, EachKindIsWhatItSays) {
  const Terms positive = terms_of(make_problem(spec(1040, DataKind::kPositive), 1));
  EXPECT_EQ(positive.sum, positive.magnitudes);
  const Terms cancelling = terms_of(make_problem(spec(1040, DataKind::kCancelling), 1));
  EXPECT_LT(std::abs(cancelling.sum), 0.1 * cancelling.magnitudes);
  EXPECT_NE(cancelling.sum, 0);
  const Terms huge = terms_of(make_problem(spec(80, DataKind::kHugeAmongTiny), 1));
  EXPECT_EQ(huge.largest, 448.0 * 448.0);
  EXPECT_GT(huge.largest, 10 * (huge.magnitudes - huge.largest));
  const ProductProblem wide = make_problem(spec(1040, DataKind::kWideRange), 1);
  EXPECT_EQ(std::set<uint8_t>(wide.a.begin(), wide.a.end()).size(), 254u);  // all but the two NaNs
}

TEST(AccumulationProblems, DefaultsCoverLongAndOddSums) {
  std::set<int64_t> lengths, widths;
  for (const ProblemSpec& it : default_problems(8192)) {
    EXPECT_EQ(it.b_format, Format::kE4m3);
    lengths.insert(it.k);
    widths.insert(it.m);
  }
  EXPECT_EQ(*lengths.begin(), 32);
  EXPECT_EQ(*lengths.rbegin(), 8192);
  EXPECT_TRUE(lengths.contains(16 * 5) && lengths.contains(16 * 65));
  EXPECT_GE(*widths.rbegin(), 2048);
  for (const ProblemSpec& it : default_problems(256)) EXPECT_LE(it.k, 256);
}

TEST(AccumulationProblems, APartHasTheOutputsOfTheWhole) {
  const ProblemSpec whole = spec(144, DataKind::kUniform);
  const ProductProblem problem = make_problem(whole, 3);
  const Sample sample = sample_of(whole, 16);
  EXPECT_EQ(sample.rows.size(), 16u);
  EXPECT_EQ(sample.rows.front(), 0);
  EXPECT_EQ(sample.rows.back(), 47);
  EXPECT_EQ(sample.columns.back(), 31);
  for (const Variant& it : {default_variant(false), Variant{SumKind::kExact, {}, 0}}) {
    const std::vector<float> all = multiply(it, problem, 2);
    EXPECT_EQ(part_of(all, whole, sample), multiply(it, part_of(problem, sample), 1));
  }
  EXPECT_EQ(sample_of(whole, 4096).rows.size(), 48u);
}

TEST(AccumulationAgreement, CountsBitsAndMeasuresTheRest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> device = {1.0f, -2.0f, 0.0f, 4.0f};
  const std::vector<float> ours = {1.0f, -2.5f, -0.0f, 3.0f};
  const Agreement found = agreement(device, ours);
  EXPECT_EQ(found.outputs, 4);
  EXPECT_EQ(found.equal, 2);
  const double dot = 1 + 5 + 12, squares = 1 + 4 + 16 + 1 + 6.25 + 9;
  EXPECT_NEAR(found.difference, 1 - 2 * dot / squares, 1e-15);
  EXPECT_DOUBLE_EQ(found.relative_error_max, 0.25);
  const Agreement spoiled = agreement(std::vector<float>{nan, 1}, std::vector<float>{1, 1});
  EXPECT_EQ(spoiled.equal, 1);
  EXPECT_EQ(spoiled.difference, 1);
  EXPECT_EQ(spoiled.relative_error_max, 2);
}

TEST(AccumulationAgreement, TheBestHasMostEqualOutputsThenTheSmallestDifferenceThenComesFirst) {
  const std::vector<VariantScore> scores = {
      {10, 5, 0.1, 0, 0}, {10, 7, 0.5, 0, 0}, {10, 7, 0.2, 0, 0}, {10, 7, 0.2, 0, 0}};
  EXPECT_EQ(best_of(scores), 2u);
}

TEST(AccumulationComparison, RecognisesTheRuleOfEveryDevice) {
  const std::vector<std::pair<Variant, Variant>> devices = {
      // fast, promoted
      {default_variant(true), default_variant(false)},
      {{SumKind::kTensorCore, {16, 10, 10}, 0}, {SumKind::kTensorCore, {64, 15, 23}, 256}},
      {{SumKind::kTensorCore, {32, 14, 23}, 512}, {SumKind::kTensorCore, {32, 23, 23}, 64}},
      {{SumKind::kTensorCore, {32, 13, 13}, 32}, {SumKind::kFp32, {}, 0}}};
  for (const auto& [fast, promoted] : devices) {
    EmulatedDevice device(fast, promoted, 1);
    const Comparison found = compare_with(device);
    ASSERT_EQ(found.modes.size(), 2u);
    for (const ModeReport& mode : found.modes) {
      const Variant& truth = mode.fast_accumulate ? fast : promoted;
      EXPECT_EQ(found.candidates[mode.best], truth) << found.candidates[mode.best].name();
      EXPECT_EQ(mode.tied.size(), 1u) << truth.name();
      EXPECT_TRUE(mode.explained());
      EXPECT_EQ(mode.scores[mode.best].relative_error_max, 0);
      EXPECT_EQ(mode.products.size(), 10u);
    }
    EXPECT_EQ(found.defaults_hold(), fast == default_variant(true));
  }
}

// Adds as the default does, but one output in sixteen is off by its last bit; two algorithms, of
// which the second sums exactly.
class CrookedDevice final : public ProductDevice {
 public:
  std::string name() const override { return "crooked"; }
  std::vector<DeviceProduct> multiply(const ProductProblem& problem,
                                      bool fast_accumulate) override {
    std::vector<float> d = gnomon::multiply(default_variant(fast_accumulate), problem, 1);
    for (size_t i = 0; i < d.size(); i += 16) {
      d[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(d[i]) ^ 1u);
    }
    return {{"crooked", d}, {"exact", gnomon::multiply({SumKind::kExact, {}, 0}, problem, 1)}};
  }
};

TEST(AccumulationComparison, SaysWhenNoCandidateExplainsEveryBit) {
  CrookedDevice device;
  const Comparison found = compare_with(device);
  for (const ModeReport& mode : found.modes) {
    EXPECT_FALSE(mode.explained());
    ASSERT_EQ(mode.products.size(), 20u);
    EXPECT_EQ(mode.products[0].algorithm, "crooked");
    EXPECT_EQ(found.candidates[mode.products[3].best].kind, SumKind::kExact);
    EXPECT_EQ(mode.products[3].agreements[mode.products[3].best].equal, 256);
    EXPECT_LT(mode.scores[0].equal_share(), 0.95);
    EXPECT_GT(mode.scores[mode.best].equal_share(), 0.4);
  }
  const std::string words = comparison_in_words(found, 3);
  EXPECT_NE(words.find("No candidate explains every bit"), std::string::npos) << words;
}

TEST(AccumulationComparison, JsonHasEveryCandidateAndProduct) {
  EmulatedDevice device(default_variant(true), default_variant(false), 1);
  const Comparison found = compare_with(device);
  const boost::json::object json = comparison_to_json(found);
  EXPECT_TRUE(json.at("defaults_hold").as_bool());
  const boost::json::object& off = json.at("modes").as_array().at(0).as_object();
  EXPECT_FALSE(off.at("fast_accumulate").as_bool());
  EXPECT_TRUE(off.at("explains_every_bit").as_bool());
  EXPECT_EQ(off.at("best").at("promote_every").to_number<int>(), 128);
  EXPECT_EQ(off.at("best").at("equal_share").to_number<double>(), 1.0);
  EXPECT_EQ(off.at("candidates").as_array().size(), candidate_variants().size());
  const boost::json::object& product = off.at("products").as_array().at(9).as_object();
  EXPECT_EQ(product.at("k").to_number<int>(), 528);
  EXPECT_EQ(product.at("data").as_string(), "huge_among_tiny");
  EXPECT_EQ(product.at("others").as_array().size(), 3u);
  EXPECT_EQ(product.at("others").as_array().at(0).at("name").as_string(),
            "32 terms, 13 bits, result 13 bits, promoted every 128");
}

TEST(AccumulationVariants, AreAllDifferentAndReadFromText) {
  const std::vector<Variant> candidates = candidate_variants();
  std::set<std::string> names;
  for (const Variant& it : candidates) names.insert(it.name());
  EXPECT_EQ(names.size(), candidates.size());
  EXPECT_EQ(variant_from_text("", "--pretend"), default_variant(true));
  EXPECT_EQ(variant_from_text("promote=128", "--pretend"), default_variant(false));
  EXPECT_EQ(variant_from_text("terms=64,bits=23,result=9,promote=128", "--pretend"),
            (Variant{SumKind::kTensorCore, {64, 23, 9}, 128}));
  for (const char* wrong : {"terms=8", "bits=24", "bits=0", "result=", "promote=48", "promote=-32",
                            "bits=1x", "frobs=3", "=", "bits", "bits=9,,", "bits=99999999999"}) {
    EXPECT_THROW(variant_from_text(wrong, "--pretend"), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace gnomon
