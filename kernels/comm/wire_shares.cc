#include "kernels/comm/wire_shares.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace gnomon {
namespace {

WireRange common(const WireRange& a, const WireRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

WireRange chunk(const WireRange& range, int64_t at, int64_t most) {
  return {std::min(range.begin + at, range.end), std::min(range.begin + at + most, range.end)};
}

}  // namespace

WireShares::WireShares(std::vector<std::vector<WireRange>> keeps) : keeps_(std::move(keeps)) {
  for (const auto& piece : keeps_) {
    for (const WireRange& range : piece) {
      GNOMON_ASSERT(range.size() >= 0);
      GNOMON_ASSERT(range.begin % WireLayout::kBlock == 0 || range.size() == 0);
    }
  }
}

int64_t WireShares::place(int64_t piece, int rank) const {
  int64_t elements = 0;
  for (int64_t before = 0; before < piece; ++before) elements += range(before, rank).size();
  return elements;
}

int64_t WireShares::kept(int rank) const { return place(pieces(), rank); }

std::vector<WireRound> WireShares::rounds(const Partition& parts, int me, int64_t most) const {
  GNOMON_ASSERT(most > 0 && most % WireLayout::kBlock == 0);
  const auto ranks = static_cast<int>(std::ssize(parts.starts)) - 1;
  const auto of_part = [&](int owner, int64_t piece, int keeper) {
    return common({parts.begin(owner), parts.begin(owner) + parts.size(owner)},
                  range(piece, keeper));
  };
  // By owner: the pieces that its part has anything of.
  std::vector<std::vector<int64_t>> busy_with(static_cast<size_t>(ranks));
  size_t turns = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    std::vector<int64_t>& own = busy_with[static_cast<size_t>(owner)];
    for (int64_t piece = 0; piece < pieces(); ++piece) {
      bool any = false;
      for (int keeper = 0; keeper < ranks; ++keeper) {
        any = any || of_part(owner, piece, keeper).size() > 0;
      }
      if (any) own.push_back(piece);
    }
    turns = std::max(turns, own.size());
  }
  std::vector<WireRound> all;
  for (size_t turn = 0; turn < turns; ++turn) {
    const auto range_of = [&](int owner, int keeper) {
      const std::vector<int64_t>& own = busy_with[static_cast<size_t>(owner)];
      return turn < own.size() ? of_part(owner, own[turn], keeper) : WireRange{};
    };
    int64_t longest = 0;
    for (int owner = 0; owner < ranks; ++owner) {
      for (int keeper = 0; keeper < ranks; ++keeper) {
        longest = std::max(longest, range_of(owner, keeper).size());
      }
    }
    for (int64_t at = 0; at < longest; at += most) {
      WireRound& round = all.emplace_back();
      for (int other = 0; other < ranks; ++other) {
        round.to.push_back(chunk(range_of(me, other), at, most));
        const WireRange from = chunk(range_of(other, me), at, most);
        round.from.push_back(from);
        const std::vector<int64_t>& theirs = busy_with[static_cast<size_t>(other)];
        round.at.push_back(from.size() == 0 ? 0
                                            : place(theirs[turn], me) + from.begin -
                                                  range(theirs[turn], me).begin);
      }
    }
  }
  return all;
}

}  // namespace gnomon
