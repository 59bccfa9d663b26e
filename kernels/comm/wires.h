// What travels between data-parallel ranks at every step: gradients that are summed, and weights
// that their owners have updated; as they are, or as FP8 codes: E4M3 or E5M2 with a scale for each
// tensor or for each block of 128 elements (FP8-LM, arXiv 2310.18313, sends gradients so). Scales
// are powers of two, so that decoding is exact; rounding is to nearest even and saturates nothing.
// What is decoded is summed in FP32 in rank order; a rank's own part passes through the codes as
// well, so that every rank's gradient counts alike. Bits depend on the number of ranks and on
// nothing else, wherever the tensors lie.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/comm/collectives.h"

namespace gnomon {

// What an element is on the wire. kFull is what it is in memory.
enum class Wire { kFull, kE4m3, kE5m2 };
enum class WireScale { kTensor, kBlock };
struct WireFormat {
  Wire wire = Wire::kFull;
  WireScale scale = WireScale::kBlock;
  bool operator==(const WireFormat&) const = default;
};
// Throws Error naming the accepted ones: full, e4m3, e5m2 (a scale for each block), e4m3:tensor,
// e5m2:tensor.
WireFormat wire_format_from_name(const std::string& name);

struct WireRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Who owns which elements, and which elements share a scale.
class WireLayout {
 public:
  static constexpr int64_t kBlock = 128;

  // `parts` start at multiples of kBlock. `tensor_starts` are the tensors' first elements,
  // ascending from 0.
  WireLayout(Partition parts, std::vector<int64_t> tensor_starts);

  const Partition& parts() const { return parts_; }
  const std::vector<int64_t>& tensor_starts() const { return tensor_starts_; }
  int64_t elements() const { return parts_.elements(); }
  int64_t longest() const { return longest_; }  // of the parts
  int64_t scales(WireScale scale) const;
  int64_t scale_of(WireScale scale, int64_t element) const;
  WireRange elements_of_scale(WireScale scale, int64_t index) const;
  WireRange scales_of_part(WireScale scale, int rank) const;
  // What of `rank`'s part travels in the round that begins `at` elements into every part, in rounds
  // of `most`.
  WireRange chunk(int rank, int64_t at, int64_t most) const;

 private:
  Partition parts_;
  std::vector<int64_t> tensor_starts_;
  int64_t longest_ = 0;
};

// Working weights of either element type.
using WeightSpan = std::variant<std::span<bf16>, std::span<float>>;

class WireShares;

class Wires {
 public:
  virtual ~Wires() = default;

  // The caller's part of `gradients` becomes the sum of the ranks' decoded parts; the others are
  // left as they are. A tensor or block that is not all finite arrives as NaN.
  virtual void reduce_scatter(WireFormat format, std::span<float> gradients) = 0;
  // Every rank gets every part, its own included, as decoded from the owner's codes. One scale for
  // a tensor that several ranks own parts of.
  virtual void all_gather(WireFormat format, std::span<bf16> weights) = 0;
  virtual void all_gather(WireFormat format, std::span<float> weights) = 0;
  // Every rank gets what it keeps of the parts (wire_shares.h), decoded to the same values as
  // all_gather() has them. `part` is the caller's part; `kept` has room for what it keeps.
  virtual void redistribute(WireFormat format, const WireShares& shares, std::span<const bf16> part,
                            std::span<bf16> kept) = 0;
  virtual void redistribute(WireFormat format, const WireShares& shares,
                            std::span<const float> part, std::span<float> kept) = 0;
};

// Wires for tensors in the host's memory. `ranks` must outlive them.
std::unique_ptr<Wires> make_host_wires(Collectives& ranks, WireLayout layout, int threads);

}  // namespace gnomon
