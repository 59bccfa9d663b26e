#include "kernels/comm/wires.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr std::pair<const char*, WireFormat> kNames[] = {
    {"full", {Wire::kFull, WireScale::kBlock}},
    {"e4m3", {Wire::kE4m3, WireScale::kBlock}},
    {"e5m2", {Wire::kE5m2, WireScale::kBlock}},
    {"e4m3:tensor", {Wire::kE4m3, WireScale::kTensor}},
    {"e5m2:tensor", {Wire::kE5m2, WireScale::kTensor}},
};

}  // namespace

WireFormat wire_format_from_name(const std::string& name) {
  std::string accepted;
  for (const auto& [known, format] : kNames) {
    if (name == known) return format;
    accepted += (accepted.empty() ? "" : ", ") + std::string(known);
  }
  throw Error("wire format \"" + name + "\"; accepted: " + accepted);
}

WireLayout::WireLayout(Partition parts, std::vector<int64_t> tensor_starts)
    : parts_(std::move(parts)), tensor_starts_(std::move(tensor_starts)) {
  GNOMON_ASSERT(!tensor_starts_.empty() && tensor_starts_.front() == 0);
  GNOMON_ASSERT(std::ranges::is_sorted(tensor_starts_));
  for (int rank = 0; rank + 1 < static_cast<int>(parts_.starts.size()); ++rank) {
    GNOMON_ASSERT(parts_.begin(rank) % kBlock == 0 || parts_.size(rank) == 0);
    longest_ = std::max(longest_, parts_.size(rank));
  }
}

int64_t WireLayout::scales(WireScale scale) const {
  return scale == WireScale::kTensor ? std::ssize(tensor_starts_)
                                     : (parts_.elements() + kBlock - 1) / kBlock;
}

int64_t WireLayout::scale_of(WireScale scale, int64_t element) const {
  if (scale == WireScale::kBlock) return element / kBlock;
  return std::ranges::upper_bound(tensor_starts_, element) - tensor_starts_.begin() - 1;
}

WireRange WireLayout::elements_of_scale(WireScale scale, int64_t index) const {
  const int64_t all = parts_.elements();
  if (scale == WireScale::kBlock) return {index * kBlock, std::min((index + 1) * kBlock, all)};
  const size_t at = static_cast<size_t>(index);
  return {tensor_starts_[at], at + 1 < tensor_starts_.size() ? tensor_starts_[at + 1] : all};
}

WireRange WireLayout::scales_of_part(WireScale scale, int rank) const {
  if (parts_.size(rank) == 0) return {0, 0};
  return {scale_of(scale, parts_.begin(rank)),
          scale_of(scale, parts_.begin(rank) + parts_.size(rank) - 1) + 1};
}

WireRange WireLayout::chunk(int rank, int64_t at, int64_t most) const {
  const int64_t begin = std::min(at, parts_.size(rank));
  const int64_t end = std::min(at + most, parts_.size(rank));
  return {parts_.begin(rank) + begin, parts_.begin(rank) + end};
}

}  // namespace gnomon
