#include "kernels/cuda/device_wires.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/errors.h"
#include "kernels/comm/wire_shares.h"
#include "kernels/cuda/wires.h"

namespace gnomon::cuda {
namespace {

template <class T>
std::span<T> range_of(std::span<T> all, const WireRange& range) {
  return all.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

class DeviceWires final : public Wires {
 public:
  DeviceWires(DeviceExchange& exchange, Memory& memory, Stream stream, WireLayout layout,
              int64_t in_flight_bytes)
      : exchange_(exchange),
        memory_(memory),
        stream_(stream),
        layout_(std::move(layout)),
        codes_max_(in_flight_bytes),
        values_max_(in_flight_bytes / static_cast<int64_t>(sizeof(float))),
        me_(exchange_.rank()),
        ranks_(exchange_.size()),
        tensor_starts_(memory),
        amaxes_(memory),
        scales_(memory),
        scales_of_ranks_(memory),
        sent_(memory),
        got_(memory),
        values_(memory) {
    GNOMON_ASSERT(std::ssize(layout_.parts().starts) == ranks_ + 1);
    GNOMON_ASSERT(in_flight_bytes > 0 && values_max_ % WireLayout::kBlock == 0);
    const std::vector<int64_t>& starts = layout_.tensor_starts();
    write_from_host(memory, std::span<const int64_t>(starts),
                    tensor_starts_.at_least(std::ssize(starts)));
  }

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
  // What exchange() is given, filled anew for each.
  struct Messages {
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
  };
  Messages& messages() {
    messages_.to.assign(static_cast<size_t>(ranks_), {});
    messages_.from.assign(static_cast<size_t>(ranks_), {});
    return messages_;
  }
  void send(const char* what) { exchange_.exchange(what, messages_.to, messages_.from); }

  WireScales scales_by(WireScale scale) const {
    if (scale == WireScale::kBlock) return {};
    return {tensor_starts_.data(), std::ssize(layout_.tensor_starts())};
  }
  int64_t part_size() const { return layout_.parts().size(me_); }

  void sum_values(std::span<float> gradients);
  void exchange_scales_of_gradients(WireFormat format, std::span<const float> gradients);
  template <class E>
  void gather(WireFormat format, std::span<E> weights);
  template <class E>
  void gather_values(std::span<E> weights);
  // scales_ of the caller's part, which begins at `part`; by tensor those of all elements, the
  // same on every rank.
  template <class E>
  void find_scales(WireFormat format, const E* part);
  template <class E>
  void share_scales_of_weights(WireFormat format, const E* part);
  template <class E>
  void send_to_keepers(WireFormat format, const WireShares& shares, std::span<const E> part,
                       std::span<E> kept);

  DeviceExchange& exchange_;
  Memory& memory_;
  Stream stream_;
  WireLayout layout_;
  int64_t codes_max_, values_max_;  // of each part that is in flight at a time
  int me_, ranks_;
  Messages messages_;
  Buffer<int64_t> tensor_starts_;
  Buffer<uint32_t> amaxes_;        // of all scales; or by rank
  Buffer<float> scales_;           // the caller's, of all elements
  Buffer<float> scales_of_ranks_;  // by rank: of the caller's part
  Buffer<uint8_t> sent_, got_;     // by rank, a chunk each
  Buffer<float> values_;           // by rank, a chunk each
};

// In FP32: the other ranks' values of the caller's part, beside its own.
void DeviceWires::sum_values(std::span<float> gradients) {
  const int64_t stride = std::min(layout_.longest(), values_max_);
  const std::span<float> got = values_.at_least(stride * ranks_);
  for (int64_t at = 0; at < layout_.longest(); at += values_max_) {
    const WireRange own = layout_.chunk(me_, at, values_max_);
    Messages& all = messages();
    for (int other = 0; other < ranks_; ++other) {
      const auto slot = static_cast<size_t>(other);
      const WireRange room{other * stride, other * stride + own.size()};
      all.to[slot] = std::as_bytes(range_of(gradients, layout_.chunk(other, at, values_max_)));
      all.from[slot] = std::as_writable_bytes(range_of(got, room));
    }
    const auto mine = static_cast<size_t>(me_);
    if (own.size() > 0) memory_.copy(all.to[mine], all.from[mine].data());
    send("the sum of gradients");
    wire_sum_values(got.data(), stride, ranks_, own.size(), gradients.data() + own.begin, stream_);
  }
}

// scales_ of all elements; scales_of_ranks_ of this rank's part, the stride being their number.
void DeviceWires::exchange_scales_of_gradients(WireFormat format,
                                               std::span<const float> gradients) {
  const int64_t count = layout_.scales(format.scale);
  uint32_t* amaxes = amaxes_.at_least(count).data();
  const std::span<float> scales = scales_.at_least(count);
  wire_amaxes(scales_by(format.scale), gradients.data(), {0, layout_.elements()}, amaxes, stream_);
  wire_scales(format.wire, amaxes, count, scales.data(), stream_);

  const WireRange mine = layout_.scales_of_part(format.scale, me_);
  const std::span<float> room =
      scales_of_ranks_.at_least(std::max<int64_t>(mine.size(), 1) * ranks_);
  Messages& all = messages();
  for (int other = 0; other < ranks_; ++other) {
    const auto slot = static_cast<size_t>(other);
    all.to[slot] = std::as_bytes(range_of(scales, layout_.scales_of_part(format.scale, other)));
    all.from[slot] =
        std::as_writable_bytes(range_of(room, {other * mine.size(), (other + 1) * mine.size()}));
  }
  const auto own = static_cast<size_t>(me_);
  if (mine.size() > 0) memory_.copy(all.to[own], all.from[own].data());
  send("the scales of gradients");
}

void DeviceWires::reduce_scatter(WireFormat format, std::span<float> gradients) {
  GNOMON_ASSERT(std::ssize(gradients) == layout_.elements());
  if (ranks_ == 1) return;
  if (format.wire == Wire::kFull) return sum_values(gradients);
  exchange_scales_of_gradients(format, gradients);
  const WireScales by = scales_by(format.scale);
  const WireRange mine = layout_.scales_of_part(format.scale, me_);
  const int64_t stride = std::min(layout_.longest(), codes_max_);
  const std::span<uint8_t> sent = sent_.at_least(stride * ranks_);
  const std::span<uint8_t> got = got_.at_least(stride * ranks_);
  for (int64_t at = 0; at < layout_.longest(); at += codes_max_) {
    const WireRange own = layout_.chunk(me_, at, codes_max_);
    Messages& all = messages();
    for (int other = 0; other < ranks_; ++other) {
      const auto slot = static_cast<size_t>(other);
      const WireRange theirs = layout_.chunk(other, at, codes_max_);
      uint8_t* codes = (other == me_ ? got : sent).data() + other * stride;
      wire_encode(format.wire, by, gradients.data(), theirs, scales_.data(), codes, stream_);
      all.to[slot] =
          std::as_bytes(range_of(sent, {other * stride, other * stride + theirs.size()}));
      all.from[slot] =
          std::as_writable_bytes(range_of(got, {other * stride, other * stride + own.size()}));
    }
    send("the sum of gradients");
    const WireTerms terms{.codes = got.data(),
                          .codes_stride = stride,
                          .scales = scales_of_ranks_.data(),
                          .scales_stride = mine.size(),
                          .first_scale = mine.begin,
                          .ranks = ranks_};
    wire_sum(format.wire, by, terms, own, gradients.data(), stream_);
  }
}

template <class E>
void DeviceWires::gather_values(std::span<E> weights) {
  const Partition& parts = layout_.parts();
  Messages& all = messages();
  for (int other = 0; other < ranks_; ++other) {
    const auto slot = static_cast<size_t>(other);
    all.to[slot] = std::as_bytes(parts.of(weights, me_));
    all.from[slot] = std::as_writable_bytes(parts.of(weights, other));
  }
  send("the sharing of weights");
}

// Kernels count elements from the first of all; `values` begin at element `first`, and nothing is
// read before them.
template <class E>
E* all_of(E* values, int64_t first) {
  return values - first;
}

template <class E>
void DeviceWires::find_scales(WireFormat format, const E* part) {
  const int64_t count = layout_.scales(format.scale);
  const bool by_block = format.scale == WireScale::kBlock;
  // By tensor, those of this rank are one row of all ranks'.
  const std::span<uint32_t> room = amaxes_.at_least(by_block ? count : count * (ranks_ + 1));
  const std::span<float> scales = scales_.at_least(count);
  uint32_t* own = by_block ? room.data() : room.data() + me_ * count;
  const int64_t begin = layout_.parts().begin(me_);
  wire_amaxes(scales_by(format.scale), all_of(part, begin), {begin, begin + part_size()}, own,
              stream_);
  if (by_block) {
    const WireRange blocks = layout_.scales_of_part(format.scale, me_);
    wire_scales(format.wire, own + blocks.begin, blocks.size(), scales.data() + blocks.begin,
                stream_);
    return;
  }
  Messages& all = messages();
  for (int other = 0; other < ranks_; ++other) {
    const auto slot = static_cast<size_t>(other);
    all.to[slot] = std::as_bytes(range_of(room, {me_ * count, (me_ + 1) * count}));
    all.from[slot] = std::as_writable_bytes(range_of(room, {other * count, (other + 1) * count}));
  }
  send("the scales of weights");
  uint32_t* largest = room.data() + ranks_ * count;
  wire_largest(room.data(), count, ranks_, count, largest, stream_);
  wire_scales(format.wire, largest, count, scales.data(), stream_);
}

// scales_ of all elements, the same on every rank: those of a block from its owner, those of a
// tensor from the largest of all ranks.
template <class E>
void DeviceWires::share_scales_of_weights(WireFormat format, const E* part) {
  find_scales(format, part);
  if (format.scale == WireScale::kTensor) return;
  const std::span<float> scales = scales_.at_least(layout_.scales(format.scale));
  Messages& all = messages();
  for (int other = 0; other < ranks_; ++other) {
    const auto slot = static_cast<size_t>(other);
    all.to[slot] = std::as_bytes(range_of(scales, layout_.scales_of_part(format.scale, me_)));
    all.from[slot] =
        std::as_writable_bytes(range_of(scales, layout_.scales_of_part(format.scale, other)));
  }
  send("the scales of weights");
}

template <class E>
void DeviceWires::gather(WireFormat format, std::span<E> weights) {
  GNOMON_ASSERT(std::ssize(weights) == layout_.elements());
  if (ranks_ == 1) return;
  if (format.wire == Wire::kFull) return gather_values(weights);
  share_scales_of_weights<E>(format, weights.data() + layout_.parts().begin(me_));
  const WireScales by = scales_by(format.scale);
  const int64_t stride = std::min(layout_.longest(), codes_max_);
  const std::span<uint8_t> got = got_.at_least(stride * ranks_);
  for (int64_t at = 0; at < layout_.longest(); at += codes_max_) {
    wire_encode<E>(format.wire, by, weights.data(), layout_.chunk(me_, at, codes_max_),
                   scales_.data(), got.data() + me_ * stride, stream_);
    Messages& all = messages();
    const auto codes_of = [&](int rank) {
      const int64_t size = layout_.chunk(rank, at, codes_max_).size();
      return range_of(got, {rank * stride, rank * stride + size});
    };
    for (int other = 0; other < ranks_; ++other) {
      all.to[static_cast<size_t>(other)] = std::as_bytes(codes_of(me_));
      all.from[static_cast<size_t>(other)] = std::as_writable_bytes(codes_of(other));
    }
    send("the sharing of weights");
    for (int other = 0; other < ranks_; ++other) {
      wire_decode(format.wire, by, got.data() + other * stride,
                  layout_.chunk(other, at, codes_max_), scales_.data(), weights.data(), stream_);
    }
  }
}

template <class E>
void DeviceWires::send_to_keepers(WireFormat format, const WireShares& shares,
                                  std::span<const E> part, std::span<E> kept) {
  GNOMON_ASSERT(std::ssize(part) == part_size() && std::ssize(kept) == shares.kept(me_));
  const bool full = format.wire == Wire::kFull;
  const bool by_block = !full && format.scale == WireScale::kBlock;
  const int64_t most = full ? codes_max_ / static_cast<int64_t>(sizeof(E)) : codes_max_;
  const WireScales by = full ? WireScales{} : scales_by(format.scale);
  const E* const all_parts = all_of(part.data(), layout_.parts().begin(me_));
  if (!full) find_scales(format, part.data());
  const auto mine = static_cast<size_t>(me_);
  const auto scales_of = [&](const WireRange& range) {
    if (range.size() == 0) return std::span<float>();
    return range_of(scales_.all(), {layout_.scale_of(format.scale, range.begin),
                                    layout_.scale_of(format.scale, range.end - 1) + 1});
  };
  for (const WireRound& round : shares.rounds(layout_.parts(), me_, most)) {
    Messages& all = messages();
    if (by_block) {
      for (size_t other = 0; other < all.to.size(); ++other) {
        all.to[other] = std::as_bytes(scales_of(round.to[other]));
        all.from[other] = std::as_writable_bytes(scales_of(round.from[other]));
      }
      send("the scales of weights");
    }
    const auto room_of = [&](size_t other) {
      return kept.subspan(static_cast<size_t>(round.at[other]),
                          static_cast<size_t>(round.from[other].size()));
    };
    if (full) {
      for (size_t other = 0; other < all.to.size(); ++other) {
        const WireRange out = round.to[other];
        all.to[other] = std::as_bytes(
            std::span(all_parts + (out.size() == 0 ? layout_.parts().begin(me_) : out.begin),
                      static_cast<size_t>(out.size())));
        all.from[other] = std::as_writable_bytes(room_of(other));
      }
      if (!all.to[mine].empty()) memory_.copy(all.to[mine], all.from[mine].data());
      send("the sharing of weights");
      continue;
    }
    const std::span<uint8_t> sent = sent_.at_least(most * ranks_);
    const std::span<uint8_t> got = got_.at_least(most * ranks_);
    for (int other = 0; other < ranks_; ++other) {
      const auto slot = static_cast<size_t>(other);
      const WireRange out = round.to[slot];
      uint8_t* codes = (other == me_ ? got : sent).data() + other * most;
      wire_encode(format.wire, by, all_parts, out, scales_.data(), codes, stream_);
      all.to[slot] = std::as_bytes(range_of(sent, {other * most, other * most + out.size()}));
      all.from[slot] = std::as_writable_bytes(
          range_of(got, {other * most, other * most + round.from[slot].size()}));
    }
    send("the sharing of weights");
    for (int other = 0; other < ranks_; ++other) {
      const auto slot = static_cast<size_t>(other);
      wire_decode(format.wire, by, got.data() + other * most, round.from[slot], scales_.data(),
                  all_of(kept.data() + round.at[slot], round.from[slot].begin), stream_);
    }
  }
}

}  // namespace

std::unique_ptr<Wires> make_device_wires(DeviceExchange& exchange, Memory& memory, Stream stream,
                                         WireLayout layout, int64_t in_flight_bytes) {
  return std::make_unique<DeviceWires>(exchange, memory, stream, std::move(layout),
                                       in_flight_bytes);
}

}  // namespace gnomon::cuda
