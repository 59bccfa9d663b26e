// The table of triage: from what is known, what to ask next or what it is.
#include <gtest/gtest.h>

#include <ostream>

#include "controller/decide/triage.h"
#include "tests/decide/triage_support.h"
#include "tests/support/words.h"

namespace gnomon::decide {
namespace {

TriageAnswer same(bool reproduces, bool bitwise = true, std::optional<int64_t> mismatch = {},
                  const std::string& kind = "same") {
  TriageAnswer answer;
  answer.kind = test::any_word(kind);
  answer.verifier = kind == "same" ? "v1" : kind == "same_elsewhere" ? "v2" : "trainer";
  answer.reproduction = Reproduction{reproduces, bitwise, mismatch, false, "It was compared"};
  return answer;
}
// A replay that ended in these weights; by losses it shows the gap or the spike.
TriageAnswer ends_in(const std::string& hash, TriageAnswer answer) {
  answer.end_hash = hash;
  answer.by_losses = Reproduction{true, false, {}, false, "It was compared by losses"};
  return answer;
}
TriageAnswer by(const std::string& verifier, TriageAnswer answer) {
  answer.verifier = verifier;
  return answer;
}
TriageAnswer failed(const std::string& kind, int64_t seed = 0) {
  TriageAnswer answer;
  answer.kind = test::any_word(kind);
  answer.seed = seed;
  answer.failed = true;
  return answer;
}
// An answer about a finding: 0 calm, 1 spikes, 2 not finite.
TriageAnswer went(const std::string& kind, int how, int64_t seed = 0) {
  TriageAnswer answer;
  answer.kind = test::any_word(kind);
  answer.seed = seed;
  answer.spike = SpikeComparison{3.0, how == 2, how == 1};
  return answer;
}
// An answer about a gap: an end loss this many per cent over the BF16 replay's 2.0.
TriageAnswer ended(const std::string& kind, double percent, int64_t seed = 0) {
  TriageAnswer answer;
  answer.kind = test::any_word(kind);
  answer.seed = seed;
  answer.end_loss = 2.0 * (1 + percent / 100);
  return answer;
}
// The nudged ones of these ended so many per cent over 2.0.
std::vector<TriageAnswer> ending(std::vector<TriageAnswer> answers, double fp8, double bf16) {
  for (TriageAnswer& answer : answers) {
    if (answer.kind == "fp8_nudged") answer.end_loss = 2.0 * (1 + fp8 / 100);
    if (answer.kind == "bf16_nudged") answer.end_loss = 2.0 * (1 + bf16 / 100);
  }
  return answers;
}
TriageAnswer forked(double d_percent, int64_t steps) {
  TriageAnswer answer;
  answer.kind = "long_fork";
  answer.long_d_percent = d_percent;
  answer.long_steps = steps;
  return answer;
}

TriageEvidence of_gap(std::vector<TriageAnswer> answers, double percent = 2,
                      bool chance_excluded = false) {
  TriageEvidence evidence;
  evidence.trigger = "gap";
  evidence.measured = gap_of(percent);
  evidence.measured.offset = 0.002;
  evidence.measured.start_loss_plan = 2.102;
  evidence.steps = 25;
  evidence.level_percent = percent;
  evidence.chance_excluded = chance_excluded;
  evidence.answers = std::move(answers);
  return evidence;
}
TriageEvidence of_spike(std::vector<TriageAnswer> answers, bool non_finite = false) {
  TriageEvidence evidence;
  evidence.trigger = non_finite ? "non_finite" : "spike";
  evidence.finding = non_finite ? nan_finding() : spike_finding();
  evidence.answers = std::move(answers);
  return evidence;
}

// "same bf16", or "= fp8_numerics".
std::string conclusion_of(const TriageStep& step) {
  if (step.verdict) {
    EXPECT_TRUE(step.tests.empty());
    EXPECT_FALSE(step.verdict->sentence.empty());
    return fmt::format("= {}", step.verdict->name);
  }
  std::string out;
  for (const TriageTest& test : step.tests) {
    if (!out.empty()) out += ' ';
    out += test.kind;
    if (test.seed != 0) out += std::to_string(test.seed);
  }
  return out;
}

struct TableCase {
  const char* name;
  TriageEvidence evidence;
  TriageRules rules;
  const char* next;
};
void PrintTo(const TableCase& table, std::ostream* out) { *out << table.name; }

class TriageTable : public ::testing::TestWithParam<TableCase> {};

TEST_P(TriageTable, SaysWhatToAskNextOrWhatItIs) {
  EXPECT_EQ(conclusion_of(triage(GetParam().evidence, GetParam().rules)), GetParam().next);
}

TriageRules plain(int pairs = 0) {
  TriageRules rules;
  rules.pairs = pairs;
  rules.tolerance_percent = 0.1;
  rules.between_percent = 0.1;
  return rules;
}
TriageRules rules_with(void (*change)(TriageRules&), int pairs = 0) {
  TriageRules rules = plain(pairs);
  change(rules);
  return rules;
}
const auto others = [](TriageRules& rules) { rules.other_verifiers = true; };
const auto three = [](TriageRules& rules) { rules.other_verifiers = rules.third_verifier = true; };
const auto trainer = [](TriageRules& rules) { rules.trainer_replays = true; };
const auto everybody = [](TriageRules& rules) {
  rules.other_verifiers = rules.trainer_replays = true;
};
const auto relapse = [](TriageRules& rules) {
  rules.earlier_transients = 1;
  rules.transients_spent = true;
};
const auto none_is_transient = [](TriageRules& rules) { rules.transients_spent = true; };
const auto bears = [](TriageRules& rules) {
  rules.accept_percent = 0.25;
  rules.steps_ahead = 1000;
};
TriageAnswer other_batch(const std::string& kind = "same") {
  TriageAnswer answer = same(false, true, 105, kind);
  answer.reproduction->other_batch = true;
  return answer;
}
TriageAnswer other_start(double start_loss_plan) {
  TriageAnswer answer = ended("fakequant", 2);
  answer.start_loss_plan = start_loss_plan;
  return answer;
}
TriageEvidence of_offset(std::vector<TriageAnswer> answers) {
  TriageEvidence evidence = of_gap(std::move(answers), 0.02);
  evidence.trigger = "offset";
  return evidence;
}
std::vector<TriageAnswer> pairs_of_gap(double fp8, double bf16) {
  return {same(true),
          ended("fp8_nudged", 2.1, 1),
          ended("bf16_nudged", 0.02, 1),
          ended("fp8_nudged", fp8, 2),
          ended("bf16_nudged", bf16, 2),
          ended("fp8_nudged", 1.9, 3),
          ended("bf16_nudged", -0.01, 3)};
}
// The run's gap of 2% did not come again under other fingerprints; three pairs of nudged replays.
std::vector<TriageAnswer> other_machine(double fp8) {
  std::vector<TriageAnswer> answers = pairs_of_gap(fp8, 0.01);
  answers.front() = same(false, false);
  answers.front().end_loss = ended("same", fp8).end_loss;
  answers[1].end_loss = ended("fp8_nudged", fp8 + 0.05).end_loss;
  answers[5].end_loss = ended("fp8_nudged", fp8 - 0.05).end_loss;
  return answers;
}
std::vector<TriageAnswer> no_pair() {
  return {same(true), failed("fp8_nudged", 1), failed("bf16_nudged", 1)};
}
TriageRules ceiling(double percent) {
  TriageRules rules;
  rules.pairs = 1;
  rules.ceiling_percent = percent;
  return rules;
}
std::vector<TriageAnswer> pairs_of_spike(int fp8_hits, int bf16_hits) {
  std::vector<TriageAnswer> answers = {same(true), went("bf16", 0)};
  for (int seed = 1; seed <= 3; ++seed) {
    answers.push_back(went("fp8_nudged", seed <= fp8_hits ? 1 : 0, seed));
    answers.push_back(went("bf16_nudged", seed <= bf16_hits ? 1 : 0, seed));
  }
  return answers;
}

TEST(TriageTest, TheLevelOfOneWindowIsThatOfItsNudgedReplays) {
  EXPECT_EQ(level_of(of_gap({same(true)}, 2)), 2);
  EXPECT_EQ(level_of(of_gap({same(true)}, 2, true)), 2);
  EXPECT_NEAR(level_of(of_gap(pairs_of_gap(1.0, 0.2), 4)), (2.1 + 1.0 + 1.9) / 3 - 0.07, 0.01);
}

INSTANTIATE_TEST_SUITE_P(
    Gap, TriageTable,
    ::testing::Values(
        TableCase{"FirstTheSameAgain", of_gap({}), plain(), "same"},
        TableCase{"NobodyCould", of_gap({failed("same")}), plain(), "= unexplained"},
        TableCase{"OtherBits", of_gap({same(false, true, 105)}), plain(), "same_again"},
        TableCase{"OtherBitsTwice",
                  of_gap({same(false, true, 105), same(false, true, 105, "same_again")}), plain(),
                  "= transient_fault"},
        TableCase{"OtherBitsEachTime",
                  of_gap({ends_in("a", same(false, true, 105)),
                          ends_in("b", same(false, true, 105, "same_again"))}),
                  plain(1), "fp8_nudged1 bf16_nudged1"},
        TableCase{"OtherBitsEachTimeAskOnceMore",
                  of_gap({ends_in("a", same(false, true, 105)),
                          ends_in("b", same(false, true, 105, "same_elsewhere"))}),
                  rules_with(others), "same_again"},
        TableCase{"OtherBitsOfOneOfThree",
                  of_gap({ends_in("a", same(false, true, 105)),
                          ends_in("b", same(false, true, 105, "same_elsewhere")),
                          ends_in("a", same(false, true, 105, "same_again"))}),
                  rules_with(others), "= transient_fault"},
        TableCase{"OtherBitsAskAnother", of_gap({same(false, true, 105)}), rules_with(others),
                  "same_elsewhere"},
        TableCase{"TheVerifierWasWrong",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere")}),
                  rules_with(others), "= verifier_fault"},
        TableCase{"BothVerifiersSayTheTrainer",
                  of_gap({same(false, true, 105), same(false, true, 105, "same_elsewhere")}),
                  rules_with(others), "= transient_fault"},
        TableCase{"NobodyElseCould", of_gap({same(false, true, 105), failed("same_elsewhere")}),
                  rules_with(others), "same_again"},
        TableCase{"AskTheTrainer", of_gap({same(false, true, 105)}), rules_with(trainer),
                  "same_on_trainer"},
        TableCase{"TheTrainerDoesItAgain",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_on_trainer")}),
                  rules_with(trainer), "= persistent_fault"},
        TableCase{"TheTrainerDoesNot",
                  of_gap({same(false, true, 105), same(false, true, 105, "same_on_trainer")}),
                  rules_with(trainer), "= transient_fault"},
        TableCase{"OnceTooOften",
                  of_gap({same(false, true, 105), same(false, true, 105, "same_again")}),
                  rules_with(relapse), "= persistent_fault"},
        TableCase{"TheFirstIsOnceTooOften", of_gap({same(false, true, 105), failed("same_again")}),
                  rules_with(none_is_transient), "= persistent_fault"},
        TableCase{"TwoContradictEachOtherAndTheTrainerIsAsked",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere")}),
                  rules_with(everybody), "same_on_trainer"},
        TableCase{"TheTrainerIsWithTheSecond",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere"),
                          same(true, true, {}, "same_on_trainer")}),
                  rules_with(everybody), "= verifier_fault"},
        TableCase{"TheTrainerIsWithTheFirst",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere"),
                          same(false, true, 105, "same_on_trainer")}),
                  rules_with(everybody), "= transient_fault"},
        TableCase{"OtherTokens", of_gap({other_batch()}), plain(), "= data_mismatch"},
        TableCase{"OtherTokensAskAnother", of_gap({other_batch()}), rules_with(others),
                  "same_elsewhere"},
        TableCase{"OtherTokensSaysAnother", of_gap({other_batch(), other_batch("same_elsewhere")}),
                  rules_with(others), "= data_mismatch"},
        TableCase{"OtherTokensSaysOneAlone",
                  of_gap({other_batch(), same(false, true, 105, "same_elsewhere")}),
                  rules_with(others), "= data_mismatch"},
        TableCase{"OtherTokensSaysTheSecondAlone",
                  of_gap({same(false, true, 105), other_batch("same_elsewhere")}),
                  rules_with(others), "= data_mismatch"},
        TableCase{"OfTwoThatContradictEachOtherAThirdTells",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere")}),
                  rules_with(three), "same_third"},
        TableCase{"AThirdThatGetsTheRunsBits",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere"),
                          same(true, true, {}, "same_third")}),
                  rules_with(three), "= verifier_fault"},
        TableCase{"AThirdWithYetOtherBits",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere"),
                          same(false, true, 106, "same_third")}),
                  rules_with(three), "= broken_instrument"},
        TableCase{"WhoIsExactAsARuleIsAskedAgain",
                  of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere")}),
                  rules_with([](TriageRules& rules) {
                    others(rules);
                    rules.differing_was_exact = true;
                  }),
                  "same_again"},
        TableCase{
            "TheSameVerifierTwiceIsOne",
            of_gap({same(false, true, 105), by("v1", same(true, true, {}, "same_elsewhere"))}),
            rules_with(others), "= transient_fault"},
        TableCase{"LossesOnlyAndNotAgain", of_gap({same(false, false)}), plain(),
                  "= transient_fault"},
        TableCase{"LossesOnlyAskAnother", of_gap({same(false, false)}), rules_with(others),
                  "same_elsewhere"},
        TableCase{"LossesOnlySaysAnother",
                  of_gap({same(false, false), same(false, false, {}, "same_elsewhere")}),
                  rules_with(others), "= transient_fault"},
        TableCase{"LossesOnlyAndAnotherHasTheBits",
                  of_gap({same(false, false), same(true, true, {}, "same_elsewhere")}),
                  rules_with(others), "fakequant"},
        TableCase{"BitsAndAnothersLossesContradictAskTheTrainer",
                  of_gap({same(false, true, 105), same(true, false, {}, "same_elsewhere")}),
                  rules_with(everybody), "same_on_trainer"},
        TableCase{"BitsAndAnothersLossesContradictAndTheTrainerHasNotTheBits",
                  of_gap({same(false, true, 105), same(true, false, {}, "same_elsewhere"),
                          same(false, true, 105, "same_on_trainer")}),
                  rules_with(everybody), "= transient_fault"},
        TableCase{"BitsAndAnothersLossesContradictAndNobodyElse",
                  of_gap({same(false, true, 105), same(true, false, {}, "same_elsewhere")}),
                  rules_with(others), "= broken_instrument"},
        TableCase{"LossesOnlyAndAnotherSaysOtherTokens",
                  of_gap({same(false, false), other_batch("same_elsewhere")}), rules_with(others),
                  "= data_mismatch"},
        TableCase{"LossesOnlyAndNotAgainMayBeChance", of_gap({same(false, false)}), plain(1),
                  "fp8_nudged1 bf16_nudged1"},
        TableCase{"LossesOnlyAndChance", of_gap(other_machine(0.1), 0.3), plain(3), "= chance"},
        TableCase{"LossesOnlyAndTheRunStandsAlone", of_gap(other_machine(0.1), 50), plain(3),
                  "= transient_fault"},
        TableCase{"LossesOnlyAndNudgesPart", of_gap(other_machine(1.9)), plain(3), "fakequant"},
        TableCase{"NobodyCouldTheSameButChanceIsAsked", of_gap({failed("same")}), plain(1),
                  "fp8_nudged1 bf16_nudged1"},
        TableCase{"NobodyCouldNudgeALittle", of_gap(no_pair()), ceiling(3), "= chance"},
        TableCase{"NobodyCouldNudgeALot", of_gap(no_pair()), ceiling(1), "fakequant"},
        TableCase{"Bf16DivergesWhenNudged", of_gap({same(true), ended("bf16_nudged", NAN, 1)}),
                  plain(3), "= chance"},
        TableCase{"PairsAreAsked", of_gap({same(true)}), plain(2),
                  "fp8_nudged1 bf16_nudged1 fp8_nudged2 bf16_nudged2"},
        TableCase{"AnOverlapEndsItAtOnce", of_gap({same(true), ended("bf16_nudged", 1.95, 1)}),
                  plain(3), "= chance"},
        TableCase{"AnOverlapWithinTheTolerance",
                  of_gap({same(true), ended("bf16_nudged", 1.95, 1)}), plain(1), "= chance"},
        TableCase{"PairsPart", of_gap(pairs_of_gap(2.0, 0.03)), plain(3), "fakequant"},
        TableCase{"PairsOverlap", of_gap(pairs_of_gap(0.1, 0.03)), plain(3), "= chance"},
        TableCase{"EvidenceNeedsNoPairs", of_gap({same(true)}, 2, true), plain(3), "fakequant"},
        TableCase{"Rounding", of_gap({same(true), ended("fakequant", 2)}), plain(),
                  "= fp8_numerics"},
        TableCase{"TheKernel", of_gap({same(true), ended("fakequant", 0.1)}), plain(),
                  "= kernel_bug"},
        TableCase{"TheKernelAtEqualWeights", of_gap({same(true), other_start(2.1)}), plain(),
                  "= kernel_bug"},
        TableCase{"EqualWeightsAgree", of_gap({same(true), other_start(2.1019)}), plain(),
                  "= fp8_numerics"},
        TableCase{"NoFakequantToBeHad", of_gap({same(true), failed("fakequant")}), plain(),
                  "= fp8_numerics"},
        TableCase{"WithinTheNoise", of_gap({same(true), ended("fakequant", 0.1)}, 0.3, true),
                  rules_with([](TriageRules& rules) { rules.noise_percent = 0.1; }),
                  "= fp8_numerics"},
        TableCase{"ASmallGapIsForked", of_gap({same(true), ended("fakequant", 0.15)}, 0.15, true),
                  rules_with(bears), "long_fork"},
        TableCase{"OfOneWindowNothingIsKnownOfItsGrowth",
                  of_gap({same(true), ended("fakequant", 0.15)}, 0.15), rules_with(bears),
                  "= fp8_numerics"},
        TableCase{"ItSaturates",
                  of_gap({same(true), ended("fakequant", 0.15), forked(0.16, 100)}, 0.15, true),
                  rules_with(bears), "= accepted_gap"},
        TableCase{"ItGrows",
                  of_gap({same(true), ended("fakequant", 0.15), forked(0.5, 100)}, 0.15, true),
                  rules_with(bears), "= fp8_numerics"},
        TableCase{"NoForkToBeHad",
                  of_gap({same(true), ended("fakequant", 0.15), failed("long_fork")}, 0.15, true),
                  rules_with(bears), "= fp8_numerics"},
        TableCase{"ALargeGapIsNotBorne", of_gap({same(true), ended("fakequant", 2)}, 2, true),
                  rules_with(bears), "= fp8_numerics"}),
    [](const auto& table) { return table.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Offset, TriageTable,
    ::testing::Values(
        TableCase{"TheKernelsAreAsked", of_offset({}), rules_with(others), "fakequant"},
        TableCase{"TheKernel", of_offset({other_start(2.1)}), plain(), "= kernel_bug"},
        TableCase{"EqualWeightsAgree", of_offset({other_start(2.1019)}), plain(), "= scale_drift"},
        TableCase{"NobodyCould", of_offset({failed("fakequant")}), plain(), "= scale_drift"}),
    [](const auto& table) { return table.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Spike, TriageTable,
    ::testing::Values(
        TableCase{"FirstBoth", of_spike({}), plain(), "same bf16"},
        TableCase{"Bf16CameFirstAndIsNotAskedAgain", of_spike({went("bf16", 0)}), plain(), "same"},
        TableCase{"Bf16FailedFirst", of_spike({failed("bf16")}), plain(), "same"},
        TableCase{"NotAgain",
                  of_spike({same(false, true, 105), same(false, true, 105, "same_again")}), plain(),
                  "= transient_fault"},
        TableCase{"SameUnknown", of_spike({failed("same"), went("bf16", 0)}), plain(),
                  "= unexplained"},
        TableCase{"WaitsForBf16", of_spike({same(true)}), plain(), "bf16"},
        TableCase{"InBothIsAskedFromAfar", of_spike({same(true), went("bf16", 1)}), plain(3),
                  "bf16_far"},
        TableCase{"InBoth", of_spike({same(true), went("bf16", 1), went("bf16_far", 1)}), plain(3),
                  "= generic_spike"},
        TableCase{"InBothAndNoOlderCheckpoint",
                  of_spike({same(true), went("bf16", 1), failed("bf16_far")}), plain(3),
                  "= generic_spike"},
        TableCase{"TheWeightsWereSpoiltBefore",
                  of_spike({same(true), went("bf16", 1), went("bf16_far", 0)}), plain(3),
                  "fp8_nudged1 bf16_nudged1 fp8_nudged2 bf16_nudged2 fp8_nudged3 bf16_nudged3"},
        TableCase{"Bf16NotFinite", of_spike({same(true), went("bf16", 2), went("bf16_far", 2)}),
                  plain(3), "= generic_spike"},
        TableCase{"Bf16Unknown", of_spike({same(true), failed("bf16")}), plain(3), "= unexplained"},
        TableCase{"PairsAreAsked", of_spike({same(true), went("bf16", 0)}), plain(1),
                  "fp8_nudged1 bf16_nudged1"},
        TableCase{"Bf16SpikesWhenNudged",
                  of_spike({same(true), went("bf16", 0), went("bf16_nudged", 1, 2)}), plain(3),
                  "= generic_spike"},
        TableCase{"FourOfFourAgainstNone", of_spike(pairs_of_spike(3, 0)), plain(3), "fakequant"},
        TableCase{"TwoOfFourAgainstNone", of_spike(pairs_of_spike(1, 0)), plain(3),
                  "= generic_spike"},
        TableCase{"SpikesInSomeAndSpoilsAll", of_spike(ending(pairs_of_spike(1, 0), 1.5, 0.1)),
                  plain(3), "fakequant"},
        TableCase{"SpikesInSomeAndTheEndsMeet", of_spike(ending(pairs_of_spike(1, 0), 0.15, 0.1)),
                  plain(3), "= generic_spike"},
        TableCase{"OneOfFourAgainst", of_spike(pairs_of_spike(3, 1)), plain(3), "= generic_spike"},
        TableCase{"Rounding", of_spike({same(true), went("bf16", 0), went("fakequant", 1)}),
                  plain(), "= fp8_numerics"},
        TableCase{"TheKernel", of_spike({same(true), went("bf16", 0), went("fakequant", 0)}),
                  plain(), "= kernel_bug"},
        TableCase{"NanInBoth", of_spike({same(true), went("bf16", 2), went("bf16_far", 2)}, true),
                  plain(), "= generic_spike"},
        TableCase{"NanWhereBf16OnlySpikes",
                  of_spike({same(true), went("bf16", 1), went("fakequant", 2)}, true), plain(),
                  "= fp8_numerics"}),
    [](const auto& table) { return table.param.name; });

// The trainer's device repeats the bits of a run whose loss shows no damage.
TEST(TriageTest, AHostIsBlamedForItsBitsByTwoVerifiers) {
  TriageRules rules = rules_with(three);
  rules.trainer_replays = true;
  TriageAnswer own = by("host", same(true, true, {}, "same_on_trainer"));
  own.on_trainer = true;
  TriageAnswer first = by("v1", same(false, true, 105));
  TriageAnswer third = by("v3", same(false, true, 105, "same_third"));
  first.end_hash = third.end_hash = "other";
  TriageEvidence evidence =
      of_gap({first, by("v2", same(true, true, {}, "same_elsewhere")), own}, 0.1);
  evidence.trigger = "audit";
  EXPECT_EQ(conclusion_of(triage(evidence, rules)), "same_third");
  evidence.answers.push_back(third);
  const TriageStep two = triage(evidence, rules);
  EXPECT_EQ(conclusion_of(two), "= persistent_fault");
  EXPECT_EQ(two.verdict->verifier, "v2") << "which only repeats the run's";
  evidence.answers = {first, own};
  rules.other_verifiers = rules.third_verifier = false;
  EXPECT_EQ(conclusion_of(triage(evidence, rules)), "= broken_instrument");
}

// The kernel's verdict rests on what v1 alone has given.
TriageEvidence kernel_seen(std::vector<TriageAnswer> seconds) {
  TriageEvidence evidence = of_gap({same(true), by("v1", ended("fakequant", 0.1))});
  evidence.seconds = std::move(seconds);
  return evidence;
}
TriageAnswer not_done(const std::string& kind) {
  TriageAnswer answer;
  answer.kind = test::any_word(kind);
  answer.failed = true;
  return answer;
}

INSTANTIATE_TEST_SUITE_P(
    SecondSources, TriageTable,
    ::testing::Values(
        TableCase{"OneAloneIsNotEnough", kernel_seen({}), rules_with(others), "fakequant"},
        TableCase{"NobodyElse", kernel_seen({not_done("fakequant")}), rules_with(others),
                  "= kernel_bug"},
        TableCase{"ItselfAgain", kernel_seen({by("v1", ended("fakequant", 2))}), rules_with(others),
                  "= kernel_bug"},
        TableCase{"TwoAgree", kernel_seen({by("v2", ended("fakequant", 0.11))}), rules_with(others),
                  "= kernel_bug"},
        TableCase{"TwoDisagree", kernel_seen({by("v2", ended("fakequant", 2))}), rules_with(others),
                  "fakequant"},
        TableCase{
            "AThirdNamesTheFirst",
            kernel_seen({by("v2", ended("fakequant", 2)), by("v3", ended("fakequant", 2.01))}),
            rules_with(others), "= verifier_fault"},
        TableCase{"WhatNobodySettlesCountsForNothing",
                  kernel_seen({by("v2", ended("fakequant", 2)), not_done("fakequant")}),
                  rules_with(others), "= fp8_numerics"},
        TableCase{"NobodyIsCountedTwice",
                  kernel_seen({by("v2", ended("fakequant", 2)), by("v2", ended("fakequant", 2))}),
                  rules_with(others), "= fp8_numerics"}),
    [](const auto& table) { return table.param.name; });

TEST(TriageTest, ARunInBf16HasNoFp8ToBlame) {
  TriageEvidence evidence = of_spike({});
  evidence.in_bf16 = true;
  EXPECT_EQ(conclusion_of(triage(evidence, plain(3))), "same");
  TriageAnswer answer = same(true);
  answer.spike = SpikeComparison{4.0, false, true};
  evidence.answers = {answer};
  EXPECT_EQ(conclusion_of(triage(evidence, plain(3))), "= generic_spike");
}

TEST(TriageTest, AFaultsVerdictSaysSinceWhenAndWhose) {
  const TriageStep step = triage(
      of_gap({same(false, true, 105), same(true, true, {}, "same_elsewhere")}), rules_with(others));
  EXPECT_EQ(step.verdict->since_step, 105);
  EXPECT_EQ(step.verdict->verifier, "v1");
}

// Losses of a replay by one process that do not show the gap: the wire is in none of its steps.
TEST(TriageTest, WhatRanksSendInLowPrecisionIsNamedWhereNoReplayCanHaveIt) {
  const auto sentence_of = [](bool sends_low) {
    TriageRules rules = plain();
    rules.sends_low = sends_low;
    const TriageStep step = triage(of_gap({same(false, false)}), rules);
    EXPECT_EQ(conclusion_of(step), "= transient_fault");
    return step.verdict->sentence;
  };
  EXPECT_NE(sentence_of(true).find("what ranks send in low precision"), std::string::npos);
  EXPECT_EQ(sentence_of(false).find("ranks"), std::string::npos);
}

}  // namespace
}  // namespace gnomon::decide
