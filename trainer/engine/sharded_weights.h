// Working weights of which each rank keeps an even part of every unit (ZeRO-3, arXiv 1910.02054):
// in a pass a unit's weights come together in a slot, the next unit's while this one's are used.
// Biases and norms are whole on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/side_gathers.h"
#include "trainer/engine/gather_plan.h"
#include "trainer/engine/weight_units.h"
#include "trainer/engine/working_weights.h"

namespace gnomon {

template <class E>
class ShardedWeights final : public WorkingWeightsOf<E> {
 public:
  ShardedWeights(const ParameterLayout& layout, WeightRanks ranks, BackendOf<E>& backend,
                 Arena& arena, std::span<float> gradients);

  bool sharded() const override { return true; }
  WeightSpan all() override;
  std::span<std::byte> kept() override { return std::as_writable_bytes(kept_); }
  void changed() override;
  void forget_copies() override {}  // none of these passes is recorded
  void load(std::span<const std::byte> all_on_host) override;
  void set(std::span<const float> values, int64_t offset) override;
  WeightSpan updated(const Shard& owned) override;
  void share(Wires& wires, WireFormat format) override;
  uint64_t hash_terms() override;
  uint64_t hash_of_common() override;
  void gather(Collectives& ranks, std::span<std::byte> all_on_host) override;

  void connect(Collectives& ranks) override;
  void begin_pass(int layers, bool trains) override;
  void enter_embedding() override { enter(units_.embedding()); }
  void enter_layer(int layer) override { enter(units_.layer(layer)); }
  void enter_head() override { enter(units_.head()); }
  void end_pass() noexcept override;
  void accompany_pass(int layers, bool trains) override;

  std::span<E> weight(int parameter) override;
  std::span<GemmOperand<E>> operands(int first_site, int count) override;
  std::span<GemmOperand<E>> all_operands() override { return {}; }

 private:
  struct Slot {
    std::span<E> room;
    std::vector<GemmOperand<E>> operands;  // a layer's, by site; or lm_head's
    int unit = kNoUnit;                    // whose weights are all there
  };
  // What this rank keeps of one piece of the numbering, and where.
  struct Piece {
    WireRange kept;     // of the numbering
    WireRange counted;  // of these, those that no other piece or rank counts
    std::span<E> place;
  };

  void allocate_slots(Arena& arena);
  void enter(int unit);
  void start(const GatherPlan::Gather& gather);
  void finish(const GatherPlan::Gather& gather);
  HashPiece hashed(const Piece& piece, const WireRange& elements) const;
  const Piece& rest() const { return pieces_.back(); }

  const ParameterLayout& layout_;
  WeightUnits units_;
  WireShares shares_;
  int rank_;
  BackendOf<E>& backend_;
  Memory& memory_;
  std::span<E> kept_;
  std::vector<Piece> pieces_;  // by unit, and the rest
  std::span<E> updated_;
  std::array<Slot, kWeightSlots> slots_;

  std::unique_ptr<SideGathers> gathers_;
  // The form of share() whose codes say all of them: gathered in it they are what they were.
  // Weights of another origin are gathered in full.
  WireFormat format_;
  SlotContents contents_{kNoUnit, kNoUnit, kNoUnit};  // when the pass is over
  GatherPlan pass_;
  size_t use_ = 0, started_ = 0, finished_ = 0;  // of the pass
};

}  // namespace gnomon
