// A tensor as the operand of GEMMs, with the quantised copy that they read.
#pragma once

#include <span>
#include <vector>

#include "kernels/quantizer.h"

namespace gnomon {

// How a copy of an operand is rounded, if at all.
struct Rounding {
  bool quantises = false;
  Quantizer quantizer;
  float scale = 1;      // of a whole tensor; what the scales of tiles are multiplied by
  bool scaled = false;  // the copy keeps its scales for Backend::scaled_gemm
  bool operator==(const Rounding&) const = default;

  bool whole_tensor() const { return quantizer.tile == TileShape{}; }
};

// One tensor as a GEMM operand, with room for its quantised copy, of which it remembers how it was
// made: another GEMM that wants another one makes it anew.
template <class E>
struct GemmOperand {
  std::span<const E> data;
  E* room = nullptr;  // for data.size() elements
  bool amax_known = false;
  float amax = 0;
  Rounding rounding = {};          // of the copy at hand
  std::vector<float> scales = {};  // of its tiles, where it keeps them

  // The tensor has new content.
  void renew(std::span<const E> content) {
    data = content;
    amax_known = rounding.quantises = false;
  }
};

}  // namespace gnomon
