#include "trainer/engine/sharded_weights.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace gnomon {
namespace {

template <class T>
std::span<T> part(std::span<T> all, int64_t begin, int64_t size) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
}

WireRange common(const WireRange& a, const WireRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Gradients of elements that the rank does not own, after what it owns or else before it, that
// have room for `bytes`; of none where there is no such room.
WireRange gradients_beside(const Partition& owned, int rank, int64_t bytes) {
  const int64_t needed = (bytes + 3) / static_cast<int64_t>(sizeof(float));
  const int64_t end = owned.begin(rank) + owned.size(rank);
  if (owned.elements() - end >= needed) return {end, end + needed};
  if (owned.begin(rank) >= needed) return {0, needed};
  return {};
}

}  // namespace

template <class E>
ShardedWeights<E>::ShardedWeights(const ParameterLayout& layout, WeightRanks ranks,
                                  BackendOf<E>& backend, Arena& arena, std::span<float> gradients)
    : layout_(layout),
      units_(layout, ranks.size),
      shares_(units_.shares()),
      rank_(ranks.rank),
      backend_(backend),
      memory_(backend.memory()) {
  kept_ = arena.allocate<E>(shares_.kept(rank_));
  for (int64_t piece = 0; piece < shares_.pieces(); ++piece) {
    const WireRange kept = shares_.range(piece, rank_);
    const bool is_rest = piece + 1 == shares_.pieces();
    // The rest is counted by rank 0.
    const WireRange counted = is_rest ? (rank_ == 0 ? units_.rest() : WireRange{})
                                      : common(kept, units_[static_cast<int>(piece)].elements);
    pieces_.push_back({kept, counted, {}});
    if (kept_.data() != nullptr) {
      pieces_.back().place = part(kept_, shares_.place(piece, rank_), kept.size());
    }
  }
  const Partition owned = Partition::even(layout.elements(), ranks.size, kMomentBlock);
  const int64_t owned_bytes = owned.size(rank_) * static_cast<int64_t>(sizeof(E));
  const WireRange beside = gradients_beside(owned, rank_, owned_bytes);
  if (beside.size() == 0) {
    updated_ = arena.allocate<E>(owned.size(rank_));
  } else if (gradients.data() != nullptr) {
    updated_ = {reinterpret_cast<E*>(gradients.data() + beside.begin),
                static_cast<size_t>(owned.size(rank_))};
  }
  allocate_slots(arena);
}

template <class E>
void ShardedWeights<E>::allocate_slots(Arena& arena) {
  const auto room_of = [&](int unit) { return units_[unit].gathered.size(); };
  int64_t layer_room = 0;
  for (int layer = 0; layer < static_cast<int>(layout_.layers().size()); ++layer) {
    layer_room = std::max(layer_room, room_of(units_.layer(layer)));
  }
  for (int at = 0; at < kWeightSlots; ++at) {
    Slot& slot = slots_[static_cast<size_t>(at)];
    if (at == kEndsSlot) {
      slot.room = arena.allocate<E>(std::max(room_of(units_.embedding()), room_of(units_.head())));
      slot.operands.resize(1);
      const int head = layout_.head();
      allocate_operands(arena, memory_, layout_, std::span(&head, 1), std::span(slot.operands));
    } else {
      slot.room = arena.allocate<E>(layer_room);
      slot.operands.resize(layout_.table().sites.size());
      allocate_layer_operands(arena, memory_, layout_, layout_.layers().front(),
                              std::span(slot.operands));
    }
  }
}

template <class E>
WeightSpan ShardedWeights<E>::all() {
  GNOMON_ASSERT(!"all working weights where each rank keeps a part");
  return std::span<E>();
}

template <class E>
void ShardedWeights<E>::changed() {
  format_ = {};
  contents_.fill(kNoUnit);
  for (Slot& slot : slots_) slot.unit = kNoUnit;
}

template <class E>
void ShardedWeights<E>::load(std::span<const std::byte> all_on_host) {
  const auto size = static_cast<int64_t>(sizeof(E));
  for (const Piece& piece : pieces_) {
    if (piece.place.empty()) continue;
    memory_.write(part(all_on_host, piece.kept.begin * size, piece.kept.size() * size),
                  std::as_writable_bytes(piece.place).data());
  }
  changed();
}

template <class E>
void ShardedWeights<E>::set(std::span<const float> values, int64_t offset) {
  for (const Piece& piece : pieces_) {
    const WireRange here = common(piece.kept, {offset, offset + std::ssize(values)});
    if (here.size() == 0) continue;
    const std::span<const float> from = part(values, here.begin - offset, here.size());
    fill_on_host(
        memory_, part(piece.place, here.begin - piece.kept.begin, here.size()),
        [&](std::span<E> room) { std::ranges::transform(from, room.begin(), from_float<E>); });
  }
  changed();
}

template <class E>
WeightSpan ShardedWeights<E>::updated(const Shard& owned) {
  GNOMON_ASSERT(owned.size() == std::ssize(updated_));
  return updated_;
}

template <class E>
void ShardedWeights<E>::share(Wires& wires, WireFormat format) {
  wires.redistribute(format, shares_, std::span<const E>(updated_), kept_);
  // Gradients lie there: what no operation writes, between parameters, must be zero.
  backend_.zero(updated_);
  changed();
  format_ = format;
}

template <class E>
HashPiece ShardedWeights<E>::hashed(const Piece& piece, const WireRange& elements) const {
  constexpr int64_t kPerWord = static_cast<int64_t>(sizeof(uint64_t) / sizeof(E));
  const std::span<E> counted =
      part(piece.place, elements.begin - piece.kept.begin, elements.size());
  return {std::as_bytes(counted), static_cast<uint64_t>(elements.begin / kPerWord)};
}

template <class E>
uint64_t ShardedWeights<E>::hash_terms() {
  std::vector<HashPiece> all;
  for (const Piece& piece : pieces_) {
    if (piece.counted.size() > 0) all.push_back(hashed(piece, piece.counted));
  }
  return backend_.hash_terms(all);
}

template <class E>
uint64_t ShardedWeights<E>::hash_of_common() {
  const HashPiece piece = hashed(rest(), units_.rest());
  return backend_.hash_terms(std::span(&piece, 1));
}

template <class E>
void ShardedWeights<E>::gather(Collectives& ranks, std::span<std::byte> all_on_host) {
  const bool first = ranks.rank() == 0;
  constexpr auto kSize = static_cast<int64_t>(sizeof(E));
  for (size_t unit = 0; unit < units_.all().size(); ++unit) {
    const WeightUnit& it = units_.all()[unit];
    const HostView<E> own(memory_, pieces_[unit].place);
    std::span<std::byte> room;
    if (first) room = part(all_on_host, it.gathered.begin * kSize, it.gathered.size() * kSize);
    ranks.gather_bytes(std::as_bytes(own.get()), room, Collectives::in_bytes(it.parts, kSize), 0);
  }
  if (first && !rest().place.empty()) {
    memory_.read(std::as_bytes(rest().place), all_on_host.data() + rest().kept.begin * kSize);
  }
}

template <class E>
void ShardedWeights<E>::connect(Collectives& ranks) {
  gathers_ = backend_.side_gathers(ranks, units_.layouts());
}

template <class E>
void ShardedWeights<E>::begin_pass(int layers, bool trains) {
  GNOMON_ASSERT(gathers_ != nullptr);
  pass_ = plan_gathers(units_of_pass(layers, units_.head(), trains), units_.head(), contents_);
  use_ = started_ = finished_ = 0;
}

template <class E>
void ShardedWeights<E>::enter(int unit) {
  GNOMON_ASSERT(use_ < pass_.uses.size() && pass_.uses[use_].unit == unit);
  while (started_ < pass_.gathers.size() && pass_.gathers[started_].from_use <= use_) {
    start(pass_.gathers[started_++]);
  }
  while (finished_ < pass_.uses[use_].gathers) finish(pass_.gathers[finished_++]);
  ++use_;
}

// This rank's part is copied in the order of the operations, after the last one that reads what the
// slot held.
template <class E>
void ShardedWeights<E>::start(const GatherPlan::Gather& gather) {
  Slot& slot = slots_[static_cast<size_t>(gather.slot)];
  slot.unit = kNoUnit;
  const WeightUnit& unit = units_[gather.unit];
  const std::span<E> room = slot.room.first(static_cast<size_t>(unit.gathered.size()));
  const std::span<const E> own = pieces_[static_cast<size_t>(gather.unit)].place;
  if (!own.empty()) {
    memory_.copy(std::as_bytes(own), std::as_writable_bytes(unit.parts.of(room, rank_)).data());
  }
  gathers_->start(units_.layout_of()[static_cast<size_t>(gather.unit)], format_, room);
}

template <class E>
void ShardedWeights<E>::finish(const GatherPlan::Gather& gather) {
  gathers_->finish();
  Slot& slot = slots_[static_cast<size_t>(gather.slot)];
  slot.unit = gather.unit;
  if (gather.slot == kEndsSlot) {
    if (gather.unit == units_.head()) slot.operands.front().renew(weight(layout_.head()));
    return;
  }
  const auto layer = static_cast<size_t>(gather.unit - units_.layer(0));
  const std::vector<int>& matrices = layout_.layers()[layer].matrices;
  for (size_t i = 0; i < matrices.size(); ++i) slot.operands[i].renew(weight(matrices[i]));
}

template <class E>
void ShardedWeights<E>::end_pass() noexcept {
  const bool whole = use_ == pass_.uses.size() && finished_ == pass_.gathers.size();
  // Who breaks a pass off may say something to the other ranks, which nobody may do before these.
  while (finished_ < started_) {
    ++finished_;
    try {
      gathers_->finish();
    } catch (...) {
      break;  // the pass is told of an error that came first
    }
  }
  if (!whole) {
    contents_.fill(kNoUnit);
    for (Slot& slot : slots_) slot.unit = kNoUnit;
  }
}

template <class E>
void ShardedWeights<E>::accompany_pass(int layers, bool trains) {
  const PassOverWeights pass(*this, layers, trains);
  while (use_ < pass_.uses.size()) enter(pass_.uses[use_].unit);
}

template <class E>
std::span<E> ShardedWeights<E>::weight(int parameter) {
  const Parameter& it = layout_[parameter];
  if (it.offset >= layout_.decayed()) {
    return part(rest().place, it.offset - rest().kept.begin, it.size);
  }
  const int unit = units_.unit_of(it.offset);
  for (const Slot& slot : slots_) {
    if (slot.unit == unit) return part(slot.room, it.offset - units_[unit].gathered.begin, it.size);
  }
  GNOMON_ASSERT(!"a weight that the pass has not come to");
  return {};
}

template <class E>
std::span<GemmOperand<E>> ShardedWeights<E>::operands(int first_site, int count) {
  const int sites = layout_.table().count();
  const int layer = first_site / sites;
  const bool is_head = layer == static_cast<int>(layout_.layers().size());
  const int unit = is_head ? units_.head() : units_.layer(layer);
  for (Slot& slot : slots_) {
    if (slot.unit != unit) continue;
    return std::span(slot.operands)
        .subspan(static_cast<size_t>(first_site % sites), static_cast<size_t>(count));
  }
  GNOMON_ASSERT(!"a GEMM site that the pass has not come to");
  return {};
}

template class ShardedWeights<bf16>;
template class ShardedWeights<float>;

}  // namespace gnomon
