// Who keeps which elements, where those who keep them are not those who make them: the working
// weights of ranks that keep a part of each layer, made by the ranks that own masters and moments.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/comm/wires.h"

namespace gnomon {

// One exchange among the ranks: each sends a range of its part to each.
struct WireRound {
  std::vector<WireRange> to;    // by rank: of the caller's part
  std::vector<WireRange> from;  // by rank: of that rank's part, what the caller keeps
  std::vector<int64_t> at;      // by rank: where `from` lies among all that the caller keeps
};

class WireShares {
 public:
  // keeps[piece][rank]: pieces of the numbering, of each of which a rank keeps one range, which
  // begins at a multiple of WireLayout::kBlock or is empty. Ranges may be kept by several. In
  // memory those of a rank follow each other, piece after piece.
  explicit WireShares(std::vector<std::vector<WireRange>> keeps);

  int64_t pieces() const { return std::ssize(keeps_); }
  const WireRange& range(int64_t piece, int rank) const {
    return keeps_[static_cast<size_t>(piece)][static_cast<size_t>(rank)];
  }
  int64_t kept(int rank) const;                  // elements
  int64_t place(int64_t piece, int rank) const;  // of its first among the kept ones
  // What `me` sends and gets until all have what they keep of `parts`, at most `most` elements (a
  // multiple of kBlock) from one rank to another at a time. In a round every part is busy with one
  // of its pieces, so that all ranks send at once.
  std::vector<WireRound> rounds(const Partition& parts, int me, int64_t most) const;

 private:
  std::vector<std::vector<WireRange>> keeps_;
};

}  // namespace gnomon
