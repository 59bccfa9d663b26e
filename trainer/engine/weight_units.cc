#include "trainer/engine/weight_units.h"

#include <algorithm>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr int64_t kBlock = WireLayout::kBlock;

WireRange to_whole_blocks(const WireRange& range, int64_t all) {
  return {range.begin / kBlock * kBlock, std::min((range.end + kBlock - 1) / kBlock * kBlock, all)};
}

}  // namespace

WeightUnits::WeightUnits(const ParameterLayout& layout, int ranks) : ranks_(ranks) {
  const int64_t all = layout.elements();
  const bool tied = layout.head() == layout.embedding();
  const int64_t end_of_layers = tied ? layout.decayed() : layout[layout.head()].offset;
  std::vector<int64_t> starts{layout[layout.embedding()].offset};
  for (const LayerParameters& layer : layout.layers()) {
    starts.push_back(layout[layer.matrices.front()].offset);
  }
  starts.push_back(end_of_layers);
  if (!tied) {
    head_ = static_cast<int>(std::ssize(starts)) - 1;
    starts.push_back(layout.decayed());
  }
  GNOMON_ASSERT(starts.front() == 0 && std::ranges::is_sorted(starts));
  for (size_t i = 0; i + 1 < starts.size(); ++i) add({starts[i], starts[i + 1]}, all);
  rest_ = {layout.decayed(), all};
  gathered_rest_ = to_whole_blocks(rest_, all);
  for (const WeightUnit& unit : units_) add_layout(unit, layout);
}

void WeightUnits::add(WireRange elements, int64_t all) {
  WeightUnit& unit = units_.emplace_back();
  unit.elements = elements;
  unit.gathered = to_whole_blocks(elements, all);
  unit.parts = Partition::even(unit.gathered.size(), ranks_, kBlock);
}

void WeightUnits::add_layout(const WeightUnit& unit, const ParameterLayout& layout) {
  std::vector<int64_t> tensors{0};
  for (const Parameter& parameter : layout.all()) {
    const int64_t start = parameter.offset - unit.gathered.begin;
    if (start > 0 && parameter.offset < unit.gathered.end) tensors.push_back(start);
  }
  for (size_t i = 0; i < layouts_.size(); ++i) {
    if (layouts_[i].parts().starts == unit.parts.starts && layouts_[i].tensor_starts() == tensors) {
      layout_of_.push_back(static_cast<int>(i));
      return;
    }
  }
  layout_of_.push_back(static_cast<int>(layouts_.size()));
  layouts_.emplace_back(unit.parts, std::move(tensors));
}

int WeightUnits::unit_of(int64_t element) const {
  int unit = 0;
  while ((*this)[unit].elements.end <= element) ++unit;
  return unit;
}

WireRange WeightUnits::kept(int unit, int rank) const {
  const WeightUnit& it = (*this)[unit];
  const int64_t begin = it.gathered.begin + it.parts.begin(rank);
  return {begin, begin + it.parts.size(rank)};
}

WireShares WeightUnits::shares() const {
  std::vector<std::vector<WireRange>> keeps;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    std::vector<WireRange>& by_rank = keeps.emplace_back();
    for (int rank = 0; rank < ranks_; ++rank) by_rank.push_back(kept(unit, rank));
  }
  keeps.emplace_back(static_cast<size_t>(ranks_), gathered_rest_);
  return WireShares(std::move(keeps));
}

}  // namespace gnomon
