#include "controller/decide/attribution_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace gnomon::decide {
namespace {

std::vector<std::string> sites(int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.push_back(fmt::format("site{:02}", i));
  return result;
}

struct Found {
  std::set<std::string> guilty;
  int64_t replays = 0;
  int64_t rounds = 0;
};

// Answers in rounds: all that is under way, oldest question last when `backwards`.
Found search(int count, const std::set<std::string>& guilty, SearchLimits limits,
             bool backwards = false) {
  AttributionSearch search = AttributionSearch::start(sites(count));
  Found found;
  std::vector<int64_t> under_way;
  while (!search.done() && !search.exhausted(limits)) {
    for (int64_t prefix : search.next(limits)) under_way.push_back(prefix);
    EXPECT_LE(static_cast<int64_t>(search.asked.size()), limits.width);
    if (under_way.empty()) {
      ADD_FAILURE() << "stuck";
      break;
    }
    found.rounds += 1;
    if (backwards) std::reverse(under_way.begin(), under_way.end());
    std::vector<std::pair<int64_t, bool>> answers;
    for (int64_t prefix : under_way) {
      const std::vector<std::string> rescued = search.rescued(prefix);
      const std::set<std::string> set(rescued.begin(), rescued.end());
      answers.emplace_back(prefix,
                           std::includes(set.begin(), set.end(), guilty.begin(), guilty.end()));
    }
    under_way.clear();
    const size_t known = search.guilty.size();
    for (const auto& [prefix, recovers] : answers) {
      if (search.guilty.size() != known) break;  // the others belong to a question that is settled
      search.answer(prefix, recovers);
    }
  }
  found.replays = search.replays;
  if (search.done())
    found.guilty = std::set<std::string>(search.guilty.begin(), search.guilty.end());
  return found;
}

class EveryWidth : public ::testing::TestWithParam<int> {};

TEST_P(EveryWidth, FindsEverySingleSiteAmong29) {
  SearchLimits limits;
  limits.width = GetParam();
  int64_t most = 0;
  for (const std::string& guilty : sites(29)) {
    for (bool backwards : {false, true}) {
      const Found found = search(29, {guilty}, limits, backwards);
      EXPECT_EQ(found.guilty, std::set<std::string>{guilty});
      most = std::max(most, found.replays);
    }
  }
  // k·log2(n) + k; asking several at a time costs more replays and fewer rounds.
  EXPECT_LE(most, limits.width == 1 ? 6 : 5 * limits.width + limits.width);
}

TEST_P(EveryWidth, FindsEveryPairAmong29) {
  SearchLimits limits;
  limits.width = GetParam();
  const auto all = sites(29);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      const std::set<std::string> guilty{all[i], all[j]};
      const Found found = search(29, guilty, limits);
      ASSERT_EQ(found.guilty, guilty) << i << " " << j;
      ASSERT_LE(found.replays, limits.width == 1 ? 12 : 40);
    }
  }
}

TEST_P(EveryWidth, FindsEveryTripleAmong29) {
  SearchLimits limits;
  limits.width = GetParam();
  const auto all = sites(29);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      for (size_t k = j + 1; k < all.size(); ++k) {
        const std::set<std::string> guilty{all[i], all[j], all[k]};
        const Found found = search(29, guilty, limits);
        ASSERT_EQ(found.guilty, guilty) << i << " " << j << " " << k;
        ASSERT_LE(found.replays, limits.width == 1 ? 18 : 40);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, EveryWidth, ::testing::Values(1, 2, 4));

TEST(AttributionSearchTest, TwoAtATimeTakeFewerRounds) {
  SearchLimits one;
  one.width = 1;
  SearchLimits two;
  two.width = 2;
  int64_t rounds_one = 0;
  int64_t rounds_two = 0;
  for (const std::string& guilty : sites(128)) {
    rounds_one += search(128, {guilty}, one).rounds;
    rounds_two += search(128, {guilty}, two).rounds;
  }
  EXPECT_LT(static_cast<double>(rounds_two), 0.8 * static_cast<double>(rounds_one));
}

TEST(AttributionSearchTest, OneCandidateNeedsNoReplay) {
  AttributionSearch search = AttributionSearch::start({"only"});
  EXPECT_TRUE(search.done());
  EXPECT_EQ(search.guilty, std::vector<std::string>{"only"});
}

TEST(AttributionSearchTest, NoCandidateEndsWithNobodyGuilty) {
  AttributionSearch search = AttributionSearch::start({});
  EXPECT_TRUE(search.done());
  EXPECT_TRUE(search.guilty.empty());
}

TEST(AttributionSearchTest, AllGuiltyAreFoundWhenTheLimitsAllow) {
  SearchLimits limits;
  limits.width = 1;
  limits.guilty_max = 8;
  const auto all = sites(5);
  EXPECT_EQ(search(5, std::set<std::string>(all.begin(), all.end()), limits).guilty.size(), 5u);
}

TEST(AttributionSearchTest, MoreGuiltySitesThanTheLimitExhaustIt) {
  SearchLimits limits;
  limits.guilty_max = 2;
  EXPECT_EQ(search(29, {"site03", "site11"}, limits).guilty.size(), 2u);
  EXPECT_TRUE(search(29, {"site03", "site11", "site20"}, limits).guilty.empty());
}

TEST(AttributionSearchTest, NeverAsksMoreReplaysThanTheLimit) {
  SearchLimits limits;
  limits.replays_max = 7;
  const Found found = search(128, {"site03", "site11", "site20"}, limits);
  EXPECT_TRUE(found.guilty.empty());
  EXPECT_EQ(found.replays, 7);
}

TEST(AttributionSearchTest, FailedReplaysAreAskedAgainUntilTheLimit) {
  SearchLimits limits;
  limits.width = 1;
  AttributionSearch search = AttributionSearch::start(sites(8));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(search.exhausted(limits));
    const auto asked = search.next(limits);
    ASSERT_EQ(asked.size(), 1u);
    search.failed(asked[0]);
  }
  EXPECT_TRUE(search.exhausted(limits));
}

TEST(AttributionSearchTest, AnswersNobodyAskedForChangeNothing) {
  AttributionSearch search = AttributionSearch::start(sites(8));
  search.answer(3, true);
  search.failed(5);
  EXPECT_EQ(search.known_good, 8);
  EXPECT_EQ(search.known_bad, 0);
  EXPECT_EQ(search.failures, 0);
}

}  // namespace
}  // namespace gnomon::decide
