// Gradients and weights that travel as FP8 codes between data-parallel ranks: E4M3 or E5M2 with a
// scale for each tensor or for each block of 128 elements (FP8-LM, arXiv 2310.18313, sends
// gradients so). Scales are powers of two, so that decoding is exact; rounding is to nearest even
// and saturates nothing. What is decoded is summed in FP32 in rank order; a rank's own part passes
// through the codes as well, so that every rank's gradient counts alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/collectives.h"

namespace gnomon {

// What an element is on the wire. kFull is what it is in memory.
enum class Wire { kFull, kE4m3, kE5m2 };
enum class WireScale { kTensor, kBlock };
struct WireFormat {
  Wire wire = Wire::kFull;
  WireScale scale = WireScale::kBlock;
  bool operator==(const WireFormat&) const = default;
};
std::string wire_format_name(WireFormat format);  // "full", "e4m3", "e5m2:tensor"
// Throws Error naming the accepted ones: full, e4m3, e5m2 (a scale for each block), e4m3:tensor,
// e5m2:tensor.
WireFormat wire_format_from_name(const std::string& name);

class CompressedCollectives {
 public:
  static constexpr int64_t kBlock = 128;

  // `parts` start at multiples of kBlock. `tensor_starts` are the tensors' first elements,
  // ascending from 0. `ranks` must outlive this.
  CompressedCollectives(Collectives& ranks, Partition parts, std::vector<int64_t> tensor_starts,
                        int threads);

  // The caller's part of `gradients` becomes the sum of the ranks' decoded parts; the others are
  // left as they are. A tensor or block that is not all finite arrives as NaN.
  void reduce_scatter(WireFormat format, std::span<float> gradients);
  // Every rank gets every part, its own included, as decoded from the owner's codes. E is bf16 or
  // float. One scale for a tensor that several ranks own parts of.
  template <class E>
  void all_gather(WireFormat format, std::span<E> weights);

  const Partition& parts() const { return parts_; }

 private:
  struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  // Element ranges with one scale each.
  int64_t scales(WireScale scale) const;
  int64_t scale_of(WireScale scale, int64_t element) const;
  Range range_of(WireScale scale, int64_t index) const;
  Range scales_of_part(WireScale scale, int rank) const;
  std::vector<Range> pieces(WireScale scale, Range elements) const;

  template <class E>
  void measure(WireFormat format, std::span<const E> values, Range elements,
               std::span<double> amaxes) const;
  void set_scales(WireFormat format, std::span<const double> amaxes);
  template <class E>
  void encode(WireFormat format, std::span<const E> values, Range elements, const float* scales,
              uint8_t* codes) const;
  void add(WireFormat format, Range elements, const float* scales, const uint8_t* codes,
           bool first);
  Range chunk(int rank, int64_t at) const;

  Collectives& ranks_;
  Partition parts_;
  std::vector<int64_t> tensor_starts_;
  int threads_;
  int64_t longest_ = 0;                      // of the parts
  std::vector<float> own_scales_;            // of all elements
  std::vector<std::vector<float>> scales_;   // by rank: of the caller's part
  std::vector<std::vector<uint8_t>> codes_;  // by rank, a chunk each
  std::vector<std::vector<uint8_t>> got_;
  std::vector<float> sum_;
};

}  // namespace gnomon
