#include "trainer/engine/engine_group.h"

#include <array>
#include <vector>

namespace gnomon {

EngineGroup::EngineGroup(EngineRanks* ranks)
    : single_(ranks == nullptr ? make_single_collectives() : nullptr),
      alone_{single_.get()},
      ranks_(ranks == nullptr ? alone_ : *ranks) {}

void EngineGroup::send_call(EngineCall call, std::string argument, bool flag) const {
  send_to_followers(ranks_, call, number_, std::move(argument), flag);
}

void EngineGroup::fail_alone(const std::exception& error) const {
  if (many()) collectives().abort(cause_of(error));
  throw;
}

// In four pieces, whose sums doubles hold exactly.
uint64_t EngineGroup::sum(uint64_t value) const {
  constexpr int kPieceBits = 16;
  std::array<double, 64 / kPieceBits> pieces = {};
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i] = static_cast<double>(value >> (kPieceBits * i) & 0xffff);
  }
  collectives().all_reduce_sum(pieces);
  uint64_t total = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    total += static_cast<uint64_t>(pieces[i]) << (kPieceBits * i);
  }
  return total;
}

// Doubles hold the counts exactly.
void EngineGroup::sum(std::span<CastCounts> casts) const {
  std::vector<double> sums, peaks;
  for (const CastCounts& it : casts) {
    for (int64_t count : {it.values, it.saturated, it.flushed}) {
      sums.push_back(static_cast<double>(count));
    }
    peaks.push_back(static_cast<double>(it.peak));
  }
  collectives().all_reduce_sum(sums);
  collectives().all_reduce_max(peaks);
  for (size_t i = 0; i < casts.size(); ++i) {
    const auto count = [&](size_t which) { return static_cast<int64_t>(sums[3 * i + which]); };
    casts[i] = {count(0), count(1), count(2), static_cast<float>(peaks[i])};
  }
}

}  // namespace gnomon
