// The rounds in which weights go from those who make them to those who keep them.
#include "kernels/comm/wire_shares.h"

#include <gtest/gtest.h>

#include <vector>

namespace gnomon {
namespace {

// Pieces whose borders are not those of the parts; the last is kept by all.
WireShares shares_of(int ranks, const std::vector<int64_t>& starts) {
  std::vector<std::vector<WireRange>> keeps;
  for (size_t piece = 0; piece + 1 < starts.size(); ++piece) {
    const bool is_last = piece + 2 == starts.size();
    const Partition parts = Partition::even(starts[piece + 1] - starts[piece], ranks, 128);
    std::vector<WireRange>& by_rank = keeps.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t begin = starts[piece] + parts.begin(rank);
      by_rank.push_back(is_last ? WireRange{starts[piece], starts[piece + 1]}
                                : WireRange{begin, begin + parts.size(rank)});
    }
  }
  return WireShares(std::move(keeps));
}

TEST(WireShares, BringEveryKeptElementOnceToItsPlace) {
  for (int ranks : {1, 2, 3, 5}) {
    const std::vector<int64_t> starts{0, 384, 2048, 2176, 9984, 10'013};
    const Partition parts = Partition::even(starts.back(), ranks, 128);
    const WireShares shares = shares_of(ranks, starts);
    for (int64_t most : {128, 512, 1 << 20}) {
      std::vector<std::vector<WireRound>> rounds;
      for (int rank = 0; rank < ranks; ++rank) rounds.push_back(shares.rounds(parts, rank, most));
      for (int me = 0; me < ranks; ++me) {
        const auto at = static_cast<size_t>(me);
        ASSERT_EQ(rounds[at].size(), rounds[0].size());
        std::vector<int64_t> kept(static_cast<size_t>(shares.kept(me)), -1);
        for (size_t round = 0; round < rounds[at].size(); ++round) {
          for (int other = 0; other < ranks; ++other) {
            const WireRound& mine = rounds[at][round];
            const auto slot = static_cast<size_t>(other);
            const WireRange from = mine.from[slot];
            const WireRange sent = rounds[slot][round].to[at];
            ASSERT_EQ(from.size(), sent.size());
            if (from.size() == 0) continue;
            ASSERT_EQ(from.begin, sent.begin);
            ASSERT_LE(from.size(), most);
            ASSERT_EQ(from.begin % 128, 0);
            ASSERT_GE(from.begin, parts.begin(other));
            ASSERT_LE(from.end, parts.begin(other) + parts.size(other));
            for (int64_t i = 0; i < from.size(); ++i) {
              int64_t& place = kept[static_cast<size_t>(mine.at[slot] + i)];
              ASSERT_EQ(place, -1) << "comes twice";
              place = from.begin + i;
            }
          }
        }
        for (int64_t piece = 0; piece < shares.pieces(); ++piece) {
          const WireRange range = shares.range(piece, me);
          for (int64_t i = 0; i < range.size(); ++i) {
            ASSERT_EQ(kept[static_cast<size_t>(shares.place(piece, me) + i)], range.begin + i);
          }
        }
      }
    }
  }
}

// A rank that owns one layer must not keep the others waiting while it sends it.
TEST(WireShares, HaveAllRanksSendAtOnce) {
  constexpr int kRanks = 4;
  std::vector<int64_t> starts;
  for (int64_t layer = 0; layer <= 16; ++layer) starts.push_back(layer * 1024);
  const Partition parts = Partition::even(starts.back(), kRanks, 128);
  const WireShares shares = shares_of(kRanks, starts);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto rounds = shares.rounds(parts, rank, 1 << 20);
    EXPECT_EQ(rounds.size(), 4u);
    for (const WireRound& round : rounds) {
      int64_t sent = 0;
      for (const WireRange& range : round.to) sent += range.size();
      EXPECT_GE(sent, 1024);
    }
  }
}

}  // namespace
}  // namespace gnomon
