// The source of statistics for tensors in the device's memory: kernels read them there, and only
// counts and sums come to the host.
#pragma once

#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/memory.h"
#include "kernels/statistics.h"
#include "kernels/statistics_source.h"

namespace gnomon::cuda {

class DeviceStatistics final : public StatisticsSource {
 public:
  // `memory` must outlive this. Room is taken there when a tensor is first looked at, and kept.
  DeviceStatistics(Memory& memory, Stream stream);

  std::vector<uint32_t> count_patterns(const MatrixView& x) override;
  std::vector<RowMoments> row_moments(const MatrixView& x) override;
  std::vector<RowProducts> row_products(const MatrixView& x, const MatrixView& y) override;
  QuantizationTally tally_tiles(const Quantizer& quantizer, const MatrixView& x) override;
  void round(std::span<const float> x, std::span<bf16> y) override;

 private:
  // Room for `count` results on the device.
  template <class T>
  T* room(int64_t count);
  // What the first `count` of them are.
  template <class T>
  std::vector<T> results(int64_t count);

  Memory& memory_;
  Stream stream_;
  Buffer<std::byte> results_;
  Buffer<uint32_t> scratch_;
};

}  // namespace gnomon::cuda
