// Masters and moments of some elements of ParameterLayout's flat numbering, in one arena, and how
// they stand in optimizer.safetensors: "master.NAME" and for each moment of the optimizer's row
// (kernels/optimizers.h) "MOMENT.NAME", such as "exp_avg.NAME", for each parameter, in the dtype
// they are stored in; for FP8 moments also "MOMENT_scales", entry i being the scale of elements
// [128·i, 128·i + 128).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/comm/collectives.h"
#include "kernels/moments.h"
#include "kernels/optimizers.h"
#include "kernels/tensor.h"
#include "storage/safetensors.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

// Elements [begin, end) of the flat numbering; begin is a multiple of kMomentBlock.
struct Shard {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  template <class T>
  std::span<T> of(std::span<T> all) const {
    return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(size()));
  }
};

// How both moments are stored; FP32 of one that the optimizer does not have.
struct MomentFormats {
  MomentFormat first = MomentFormat::kFp32;
  MomentFormat second = MomentFormat::kFp32;
  MomentFormat of(Moment moment) const { return moment == Moment::kFirst ? first : second; }
  bool operator==(const MomentFormats&) const = default;
};

class OptimizerState {
 public:
  // Takes memory for the optimizer's moments of `room` or a narrower format, all zero, unless it is
  // only to be counted. The moments are of `room` at first. `memory` must outlive this.
  OptimizerState(std::string arena, OptimizerKind optimizer, MomentFormat room, Shard shard,
                 Memory& memory, bool commits = true);

  // The arena of one for `elements`, of which nothing is taken.
  static ArenaSize measure(std::string arena, OptimizerKind optimizer, MomentFormat room,
                           int64_t elements);

  const MomentFormats& formats() const { return formats_; }
  // True when there is room for them.
  bool has_room_for(const MomentFormats& formats) const;
  // Moments of these formats from now on; what they hold is not defined, but all zero bytes are
  // zeros in every format.
  void set_formats(const MomentFormats& formats);
  // The same, and the moments keep their values, rounded as encode_moments() does where a format is
  // narrower. On the host: what is copied out of them must have ended (Memory::settle). Changes
  // nothing when it throws.
  void change_formats(const MomentFormats& formats, uint64_t seed, int64_t step);

  // Masters and moments of the shard: element 0 is the shard's first.
  std::span<float> masters() { return masters_; }
  const MomentSpans& moments() const { return moments_; }
  const Shard& shard() const { return shard_; }
  const Arena& arena() const { return arena_; }
  // Masters and moments as they lie in memory.
  std::span<std::byte> content() { return arena_.content(); }
  // How many updates the moments have seen, which their bias correction goes by: a step that is
  // skipped is none.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  void count_update() { ++updates_; }
  // By the backend whose memory it is in; after it there was no update.
  void clear_moments(BackendBase& backend);
  // Notes an update's sums. Returns whether it read what the update before had written: false says
  // that the memory did not keep it. True where something else was meant to write since.
  bool note_sums(const StateSums& sums);
  // Masters or moments were written by something else than an update.
  void forget_sums() { written_.reset(); }

  // Every tensor of the file for all elements of `layout`, which the shard must be.
  std::vector<TensorView> views(const ParameterLayout& layout);
  // The same tensors without data, for a state of these formats.
  static std::vector<TensorView> names(OptimizerKind optimizer, const ParameterLayout& layout,
                                       const MomentFormats& formats);
  // Copies the shard's part from a file that has those tensors.
  void load(const SafetensorsFile& file, const ParameterLayout& layout);
  // Brings the shards of all ranks together in `all`, which rank 0 has and the others do not. Shard
  // r is part r of `parts`. All ranks call it.
  void gather(Collectives& ranks, const Partition& parts, OptimizerState* all);

 private:
  void allocate_all();

  Memory& memory_;
  Shard shard_;
  Arena arena_;
  OptimizerKind optimizer_;
  MomentFormat room_;
  MomentFormats formats_;
  int64_t updates_ = 0;
  std::optional<uint32_t> written_;  // StateSums' of the newest update
  std::span<float> masters_;
  std::array<std::span<std::byte>, 2> moment_rooms_;  // by Moment
  MomentSpans moments_;
};

}  // namespace gnomon
