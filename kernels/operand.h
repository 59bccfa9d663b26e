// A tensor as the operand of matrix products, and the rounded copy that a product reads in its
// place. What the copy is made of is the backend's own: BF16 values on the CPU, codes of a narrow
// format on a device. Nothing here comes back to the host: a scale that follows from the tensor
// stays at its address beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/memory.h"
#include "numerics/formats.h"
#include "numerics/quantizer.h"

namespace gnomon {

// How a copy of a matrix is rounded, if at all.
struct Rounding {
  bool quantises = false;
  Quantizer quantizer;
  // The scale of a whole tensor. Where there is none it follows from the amax: by the quantizer's
  // rule, for kGiven as delayed_scale() does with `margin`.
  std::optional<float> given;
  const float* given_at = nullptr;  // `given` in the backend's memory, where that is not the host's
  int margin = 0;
  int log2_shift = 0;         // every scale is 2^log2_shift times that
  bool keeps_scales = false;  // BackendOf::keeps_scales()
  bool operator==(const Rounding&) const = default;

  bool whole_tensor() const { return quantizer.tile == TileShape{}; }
};

// The scale of a whole tensor with this amax.
float tensor_scale(const Rounding& rounding, float amax);

// What casts to a narrow format did to their tensors. NaN counts as neither saturated nor flushed.
// A device counts only values of the first 16 of every 128 rows.
struct CastCounts {
  int64_t values = 0;     // that were looked at; 0: nothing was cast, or the backend does not count
  int64_t saturated = 0;  // cut to the format's largest, beyond what rounds to it; ±Inf among them
  int64_t flushed = 0;    // nonzero and became zero
  // The largest peak_over_largest() of their tiles; 0: no amax was finite and known.
  float peak = 0;
  void add(const CastCounts& other);
  bool operator==(const CastCounts&) const = default;
};

// |amax·scale| over the format's largest value: 1 where the scale fits exactly, 2 where it is twice
// too large. Finite, also where the quotient is not.
float peak_over_largest(float scaled_amax, Format format);

// Which way round a product reads a matrix: as it is stored, row by row, or by columns.
enum Orientation : unsigned { kAsStored = 1, kTransposed = 2 };

// What lies beside an operand, in the backend's memory, FP32 each. The inverse scale is first,
// where the memory is aligned: cuBLASLt takes scales from multiples of 16 bytes alone.
enum OperandScalar { kInverseScale, kAmax, kScale, kOperandScalars };

// Where copies lie. Operands that a product reads side by side share one room.
struct OperandRoom {
  static constexpr int64_t kBytesPerElement = 2;
  std::byte* begin = nullptr;  // of all.elements · kBytesPerElement
  int64_t before = 0;          // elements of the operands before this one
  int64_t elements = 0;        // of all operands of the room
  bool operator==(const OperandRoom&) const = default;
};

// One tensor as an operand, and its copy, of which it remembers how it was made: a product that
// wants another one has it made anew.
template <class E>
struct GemmOperand {
  std::span<const E> data;
  OperandRoom room;
  float* scalars = nullptr;        // [kOperandScalars]
  bool amax_known = false;         // scalars[kAmax] is that of `data`
  Rounding rounding = {};          // of the copy at hand
  unsigned orientations = 0;       // that it is there in
  Buffer<float> tile_scales = {};  // where it keeps them, taken when they are first needed

  // The tensor has new content.
  void renew(std::span<const E> content) {
    data = content;
    amax_known = rounding.quantises = false;
  }
};

// The copy of a tensor that is about to be made, whose scale is known before its content is.
template <class E>
struct CopyAlong {
  GemmOperand<E>* operand = nullptr;
  Rounding rounding;             // of the whole tensor, with `given`
  unsigned wanted = 0;           // made of Orientation
  CastCounts* counts = nullptr;  // as BackendOf::quantize() has it
};

// Room for an operand that is taken after the start.
template <class E>
class OperandMemory {
 public:
  // `memory` must outlive this.
  explicit OperandMemory(Memory& memory) : memory_(memory), room_(memory), scalars_(memory) {}

  // Gives the operand this content, of which no copy is made yet, and room for one, which serves
  // until the next call.
  void serve(GemmOperand<E>& operand, std::span<const E> content) {
    const int64_t elements = std::ssize(content);
    const int64_t bytes = elements * OperandRoom::kBytesPerElement;
    operand.room = {room_.at_least(bytes).data(), 0, elements};
    operand.scalars = scalars_.at_least(kOperandScalars).data();
    if (operand.tile_scales.data() == nullptr) operand.tile_scales = Buffer<float>(memory_);
    operand.renew(content);
  }

 private:
  Memory& memory_;
  Buffer<std::byte> room_;
  Buffer<float> scalars_;
};

// An operand with room of its own.
template <class E>
class OwnOperand {
 public:
  explicit OwnOperand(Memory& memory) : memory_(memory) {}

  GemmOperand<E>& of(std::span<const E> content) {
    memory_.serve(operand_, content);
    return operand_;
  }
  GemmOperand<E>& operand() { return operand_; }

 private:
  OperandMemory<E> memory_;
  GemmOperand<E> operand_;
};

}  // namespace gnomon
