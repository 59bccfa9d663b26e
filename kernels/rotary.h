// Rotary position embedding: how fast each pair of a head's elements turns with its position.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace gnomon {

// How a model that was trained on short sequences is stretched to longer ones.
struct RopeScaling {
  enum class Kind {
    kNone,
    kLinear,  // every pair turns `factor` times slower
    kLlama3,  // Llama 3.1: slow pairs do, fast ones stay, those between are blended
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  // kLlama3 alone: a pair is slow if it turns less than low_frequency times in original_context
  // positions, fast if more than high_frequency times.
  double low_frequency = 1;
  double high_frequency = 4;
  int64_t original_context = 8192;
  auto operator<=>(const RopeScaling&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Rotary {
  double theta = 10000;
  RopeScaling scaling = {};
  auto operator<=>(const Rotary&) const = default;  // NOLINT(modernize-use-nullptr)

  // Radians that pair `pair` of head_dim / 2 turns from one position to the next: theta^(-2i/d),
  // scaled as transformers' modeling_rope_utils does.
  double frequency(int pair, int head_dim) const;
};

// Cosine and sine of position times frequency, computed in FP64: [tokens, head_dim / 2] each.
struct RotaryTable {
  RotaryTable(int64_t tokens, int head_dim, const Rotary& rotary);
  std::vector<float> cosines;
  std::vector<float> sines;
};

}  // namespace gnomon
