#include "kernels/cuda/device_statistics.h"

#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/statistics.h"

namespace gnomon::cuda {

DeviceStatistics::DeviceStatistics(Memory& memory, Stream stream)
    : memory_(memory), stream_(stream), results_(memory), scratch_(memory) {}

template <class T>
T* DeviceStatistics::room(int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<T*>(results_.at_least(bytes).data());
}

template <class T>
std::vector<T> DeviceStatistics::results(int64_t count) {
  std::vector<T> found(static_cast<size_t>(count));
  memory_.read(std::as_bytes(std::span<const T>(room<T>(count), found.size())),
               reinterpret_cast<std::byte*>(found.data()));
  return found;
}

std::vector<uint32_t> DeviceStatistics::count_patterns(const MatrixView& x) {
  cuda::count_patterns(x, room<uint32_t>(kPatterns), stream_);
  return results<uint32_t>(kPatterns);
}

std::vector<RowMoments> DeviceStatistics::row_moments(const MatrixView& x) {
  cuda::row_moments(x, room<RowMoments>(x.rows), stream_);
  return results<RowMoments>(x.rows);
}

std::vector<RowProducts> DeviceStatistics::row_products(const MatrixView& x, const MatrixView& y) {
  cuda::row_products(x, y, room<RowProducts>(x.rows), stream_);
  return results<RowProducts>(x.rows);
}

QuantizationTally DeviceStatistics::tally_tiles(const Quantizer& quantizer, const MatrixView& x) {
  const TallyNeeds needs = tally_needs(quantizer, x.rows, x.columns);
  uint32_t* scratch = needs.scratch == 0 ? nullptr : scratch_.at_least(needs.scratch).data();
  cuda::tally_tiles(quantizer, x, room<QuantizationTally>(needs.tallies), scratch, stream_);
  QuantizationTally sum;
  for (const QuantizationTally& piece : results<QuantizationTally>(needs.tallies)) sum.add(piece);
  return sum;
}

void DeviceStatistics::round(std::span<const float> x, std::span<bf16> y) {
  GNOMON_ASSERT(x.size() == y.size());
  round_sum(x.data(), std::ssize(x), y.data(), stream_);
}

}  // namespace gnomon::cuda
