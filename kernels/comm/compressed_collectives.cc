#include "kernels/comm/compressed_collectives.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "kernels/cpu/cast.h"
#include "kernels/moment_codes.h"

namespace gnomon {
namespace {

// Elements of each part that are in flight at a time.
constexpr int64_t kChunk = 1 << 22;
// Elements that a thread works on at a time.
constexpr int64_t kDecodedAtOnce = 8192;

Format format_of(Wire wire) {
  GNOMON_ASSERT(wire != Wire::kFull);
  return wire == Wire::kE4m3 ? Format::kE4m3 : Format::kE5m2;
}

float scale_for(Wire wire, double amax) {
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  const float value = static_cast<float>(amax);
  return wire == Wire::kE4m3 ? moment_scale<E4m3Codes>(value) : moment_scale<E5m2Codes>(value);
}

// max |x|, infinite where a value is not finite.
template <class E>
float finite_amax(const E* x, int64_t count) {
  float amax = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(to_float(x[i]));
    finite &= magnitude <= std::numeric_limits<float>::max();
    amax = std::max(amax, magnitude);
  }
  return finite ? amax : std::numeric_limits<float>::infinity();
}

}  // namespace

CompressedCollectives::CompressedCollectives(Collectives& ranks, WireLayout layout, int threads)
    : ranks_(ranks), layout_(std::move(layout)), threads_(threads) {
  GNOMON_ASSERT(std::ssize(layout_.parts().starts) == ranks.size() + 1);
  scales_.resize(static_cast<size_t>(ranks.size()));
  codes_.resize(static_cast<size_t>(ranks.size()));
  got_.resize(static_cast<size_t>(ranks.size()));
}

// `elements` cut where the scale changes and where a thread's work is enough.
std::vector<WireRange> CompressedCollectives::pieces(WireScale scale, WireRange elements) const {
  std::vector<WireRange> all;
  while (elements.begin < elements.end) {
    const WireRange same =
        layout_.elements_of_scale(scale, layout_.scale_of(scale, elements.begin));
    const int64_t end = std::min({elements.end, same.end, elements.begin + kDecodedAtOnce});
    all.push_back({elements.begin, end});
    elements.begin = end;
  }
  return all;
}

// amaxes[i] becomes at least the largest of the elements under scale i. `values` are those of
// elements.begin on.
template <class E>
void CompressedCollectives::measure(WireFormat format, const E* values, WireRange elements,
                                    std::span<double> amaxes) const {
  const std::vector<WireRange> all = pieces(format.scale, elements);
  std::vector<float> found(all.size());
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (size_t i = 0; i < all.size(); ++i) {
    found[i] = finite_amax(values + (all[i].begin - elements.begin), all[i].size());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    double& amax = amaxes[static_cast<size_t>(layout_.scale_of(format.scale, all[i].begin))];
    amax = std::max(amax, static_cast<double>(found[i]));
  }
}

void CompressedCollectives::set_scales(WireFormat format, std::span<const double> amaxes) {
  own_scales_.resize(amaxes.size());
  for (size_t i = 0; i < amaxes.size(); ++i) own_scales_[i] = scale_for(format.wire, amaxes[i]);
}

template <class E>
void CompressedCollectives::find_scales(WireFormat format, const E* part) {
  const int64_t begin = layout_.parts().begin(ranks_.rank());
  std::vector<double> amaxes(static_cast<size_t>(layout_.scales(format.scale)));
  measure<E>(format, part, {begin, begin + layout_.parts().size(ranks_.rank())}, amaxes);
  if (format.scale == WireScale::kTensor) ranks_.all_reduce_max(amaxes);
  set_scales(format, amaxes);
}

// `values`, `scales` and `codes` are those of elements.begin on.
template <class E>
void CompressedCollectives::encode(WireFormat format, const E* values, WireRange elements,
                                   const float* scales, uint8_t* codes) const {
  const int64_t first = layout_.scale_of(format.scale, elements.begin);
  const std::vector<WireRange> all = pieces(format.scale, elements);
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t count = static_cast<size_t>(all[i].size());
    const int64_t at = all[i].begin - elements.begin;
    cpu::cast_to_codes<E>(1, format_of(format.wire), std::span(values + at, count),
                          1.0f / scales[layout_.scale_of(format.scale, all[i].begin) - first],
                          std::span(codes + at, count));
  }
}

// `codes` and `values` are those of elements.begin on; the scales are own_scales_.
template <class E>
void CompressedCollectives::decode(WireFormat format, WireRange elements, const uint8_t* codes,
                                   E* values) const {
  const std::vector<WireRange> all = pieces(format.scale, elements);
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t count = static_cast<size_t>(all[i].size());
    const int64_t at = all[i].begin - elements.begin;
    cpu::cast_from_codes<E>(
        1, format_of(format.wire), std::span(codes + at, count),
        own_scales_[static_cast<size_t>(layout_.scale_of(format.scale, all[i].begin))],
        std::span(values + at, count));
  }
}

// sum_ becomes, or has added, what `codes` mean.
void CompressedCollectives::add(WireFormat format, WireRange elements, const float* scales,
                                const uint8_t* codes, bool first) {
  const int64_t first_scale = layout_.scale_of(format.scale, elements.begin);
  const std::vector<WireRange> all = pieces(format.scale, elements);
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t count = static_cast<size_t>(all[i].size());
    const int64_t at = all[i].begin - elements.begin;
    float values[kDecodedAtOnce];
    cpu::cast_from_codes<float>(1, format_of(format.wire), std::span(codes + at, count),
                                scales[layout_.scale_of(format.scale, all[i].begin) - first_scale],
                                std::span(values, count));
    float* sum = sum_.data() + at;
    for (size_t j = 0; j < count; ++j) sum[j] = first ? values[j] : sum[j] + values[j];
  }
}

void CompressedCollectives::reduce_scatter(WireFormat format, std::span<float> gradients) {
  GNOMON_ASSERT(std::ssize(gradients) == layout_.elements());
  if (ranks_.size() == 1) return;
  if (format.wire == Wire::kFull) return ranks_.reduce_scatter(gradients, layout_.parts());
  const int me = ranks_.rank();
  std::vector<double> amaxes(static_cast<size_t>(layout_.scales(format.scale)));
  measure<float>(format, gradients.data(), {0, layout_.elements()}, amaxes);
  set_scales(format, amaxes);

  std::vector<std::span<const std::byte>> to(static_cast<size_t>(ranks_.size()));
  std::vector<std::span<std::byte>> from(static_cast<size_t>(ranks_.size()));
  const WireRange mine = layout_.scales_of_part(format.scale, me);
  for (int other = 0; other < ranks_.size(); ++other) {
    const size_t at = static_cast<size_t>(other);
    const WireRange theirs = layout_.scales_of_part(format.scale, other);
    to[at] = std::as_bytes(
        std::span(own_scales_)
            .subspan(static_cast<size_t>(theirs.begin), static_cast<size_t>(theirs.size())));
    scales_[at].assign(own_scales_.begin() + mine.begin, own_scales_.begin() + mine.end);
    from[at] = std::as_writable_bytes(std::span(scales_[at]));
  }
  ranks_.exchange(to, from);

  for (int64_t at = 0; at < layout_.longest(); at += kChunk) {
    const WireRange own = layout_.chunk(me, at, kChunk);
    for (int other = 0; other < ranks_.size(); ++other) {
      const size_t slot = static_cast<size_t>(other);
      const WireRange theirs = layout_.chunk(other, at, kChunk);
      codes_[slot].resize(static_cast<size_t>(theirs.size()));
      got_[slot].resize(static_cast<size_t>(own.size()));
      if (theirs.size() > 0) {
        encode<float>(format, gradients.data() + theirs.begin, theirs,
                      own_scales_.data() + layout_.scale_of(format.scale, theirs.begin),
                      codes_[slot].data());
      }
      to[slot] = std::as_bytes(std::span(codes_[slot]));
      from[slot] = std::as_writable_bytes(std::span(got_[slot]));
    }
    ranks_.exchange(to, from);
    if (own.size() == 0) continue;
    sum_.resize(static_cast<size_t>(own.size()));
    for (int other = 0; other < ranks_.size(); ++other) {
      const size_t slot = static_cast<size_t>(other);
      add(format, own,
          scales_[slot].data() + layout_.scale_of(format.scale, own.begin) - mine.begin,
          other == me ? codes_[slot].data() : got_[slot].data(), other == 0);
    }
    std::ranges::copy(sum_, gradients.begin() + own.begin);
  }
}

template <class E>
void CompressedCollectives::gather(WireFormat format, std::span<E> weights) {
  GNOMON_ASSERT(std::ssize(weights) == layout_.elements());
  if (ranks_.size() == 1) return;
  if (format.wire == Wire::kFull) return ranks_.all_gather(weights, layout_.parts());
  const int me = ranks_.rank();
  const Partition& parts = layout_.parts();
  find_scales<E>(format, weights.data() + parts.begin(me));
  if (format.scale == WireScale::kBlock) {
    Partition blocks;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      blocks.starts.push_back((parts.begin(rank) + WireLayout::kBlock - 1) / WireLayout::kBlock);
    }
    blocks.starts.push_back(std::ssize(own_scales_));
    ranks_.all_gather(std::span(own_scales_), blocks);
  }

  std::vector<std::span<const std::byte>> to(static_cast<size_t>(ranks_.size()));
  std::vector<std::span<std::byte>> from(static_cast<size_t>(ranks_.size()));
  for (int64_t at = 0; at < layout_.longest(); at += kChunk) {
    const WireRange own = layout_.chunk(me, at, kChunk);
    std::vector<uint8_t>& codes = codes_[static_cast<size_t>(me)];
    codes.resize(static_cast<size_t>(own.size()));
    if (own.size() > 0) {
      encode<E>(format, weights.data() + own.begin, own,
                own_scales_.data() + layout_.scale_of(format.scale, own.begin), codes.data());
    }
    for (int other = 0; other < ranks_.size(); ++other) {
      const size_t slot = static_cast<size_t>(other);
      got_[slot].resize(static_cast<size_t>(layout_.chunk(other, at, kChunk).size()));
      to[slot] = std::as_bytes(std::span(codes));
      from[slot] = std::as_writable_bytes(std::span(got_[slot]));
    }
    ranks_.exchange(to, from);
    for (int other = 0; other < ranks_.size(); ++other) {
      const uint8_t* source = other == me ? codes.data() : got_[static_cast<size_t>(other)].data();
      const WireRange theirs = layout_.chunk(other, at, kChunk);
      decode(format, theirs, source, weights.data() + theirs.begin);
    }
  }
}

template <class E>
void CompressedCollectives::send_to_keepers(WireFormat format, const WireShares& shares,
                                            std::span<const E> part, std::span<E> kept) {
  const int me = ranks_.rank();
  const int64_t begin = layout_.parts().begin(me);
  GNOMON_ASSERT(std::ssize(part) == layout_.parts().size(me));
  GNOMON_ASSERT(std::ssize(kept) == shares.kept(me));
  const bool full = format.wire == Wire::kFull;
  const bool by_block = !full && format.scale == WireScale::kBlock;
  if (!full) find_scales<E>(format, part.data());

  const auto count = static_cast<size_t>(ranks_.size()), mine = static_cast<size_t>(me);
  std::vector<std::span<const std::byte>> to(count);
  std::vector<std::span<std::byte>> from(count);
  const auto scales_of = [&](const WireRange& range) {
    if (range.size() == 0) return std::span<float>();
    const int64_t first = layout_.scale_of(format.scale, range.begin);
    const int64_t last = layout_.scale_of(format.scale, range.end - 1);
    return std::span(own_scales_)
        .subspan(static_cast<size_t>(first), static_cast<size_t>(last - first + 1));
  };
  for (const WireRound& round : shares.rounds(layout_.parts(), me, kChunk)) {
    if (by_block) {
      for (size_t other = 0; other < count; ++other) {
        to[other] = std::as_bytes(scales_of(round.to[other]));
        from[other] = std::as_writable_bytes(scales_of(round.from[other]));
      }
      ranks_.exchange(to, from);
    }
    for (size_t other = 0; other < count; ++other) {
      const WireRange out = round.to[other], in = round.from[other];
      const std::span<E> room =
          kept.subspan(static_cast<size_t>(round.at[other]), static_cast<size_t>(in.size()));
      const std::span<const E> values =
          part.subspan(out.size() == 0 ? 0 : static_cast<size_t>(out.begin - begin),
                       static_cast<size_t>(out.size()));
      if (full) {
        to[other] = std::as_bytes(values);
        from[other] = std::as_writable_bytes(room);
        continue;
      }
      codes_[other].resize(values.size());
      got_[other].resize(room.size());
      if (!values.empty()) {
        encode<E>(format, values.data(), out, scales_of(out).data(), codes_[other].data());
      }
      to[other] = std::as_bytes(std::span(codes_[other]));
      from[other] = std::as_writable_bytes(std::span(got_[other]));
    }
    ranks_.exchange(to, from);
    if (!to[mine].empty()) std::memcpy(from[mine].data(), to[mine].data(), to[mine].size());
    if (full) continue;
    for (size_t other = 0; other < count; ++other) {
      decode(format, round.from[other], got_[other].data(), kept.data() + round.at[other]);
    }
  }
}

std::unique_ptr<Wires> make_host_wires(Collectives& ranks, WireLayout layout, int threads) {
  return std::make_unique<CompressedCollectives>(ranks, std::move(layout), threads);
}

}  // namespace gnomon
