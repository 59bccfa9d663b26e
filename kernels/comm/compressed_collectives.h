// Wires of tensors in the host's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/comm/wire_shares.h"
#include "kernels/comm/wires.h"

namespace gnomon {

class CompressedCollectives final : public Wires {
 public:
  // `ranks` must outlive this.
  CompressedCollectives(Collectives& ranks, WireLayout layout, int threads);

  void reduce_scatter(WireFormat format, std::span<float> gradients) override;
  void all_gather(WireFormat format, std::span<bf16> weights) override { gather(format, weights); }
  void all_gather(WireFormat format, std::span<float> weights) override { gather(format, weights); }
  void redistribute(WireFormat format, const WireShares& shares, std::span<const bf16> part,
                    std::span<bf16> kept) override {
    send_to_keepers(format, shares, part, kept);
  }
  void redistribute(WireFormat format, const WireShares& shares, std::span<const float> part,
                    std::span<float> kept) override {
    send_to_keepers(format, shares, part, kept);
  }

 private:
  // Element ranges with one scale each.
  std::vector<WireRange> pieces(WireScale scale, WireRange elements) const;

  template <class E>
  void gather(WireFormat format, std::span<E> weights);
  template <class E>
  void send_to_keepers(WireFormat format, const WireShares& shares, std::span<const E> part,
                       std::span<E> kept);
  template <class E>
  void measure(WireFormat format, const E* values, WireRange elements,
               std::span<double> amaxes) const;
  void set_scales(WireFormat format, std::span<const double> amaxes);
  // own_scales_ of what the caller owns, and where they are by tensor of all elements; `part` is
  // the caller's.
  template <class E>
  void find_scales(WireFormat format, const E* part);
  template <class E>
  void encode(WireFormat format, const E* values, WireRange elements, const float* scales,
              uint8_t* codes) const;
  template <class E>
  void decode(WireFormat format, WireRange elements, const uint8_t* codes, E* values) const;
  void add(WireFormat format, WireRange elements, const float* scales, const uint8_t* codes,
           bool first);

  Collectives& ranks_;
  WireLayout layout_;
  int threads_;
  std::vector<float> own_scales_;            // of all elements
  std::vector<std::vector<float>> scales_;   // by rank: of the caller's part
  std::vector<std::vector<uint8_t>> codes_;  // by rank, a chunk each
  std::vector<std::vector<uint8_t>> got_;
  std::vector<float> sum_;
};

}  // namespace gnomon
