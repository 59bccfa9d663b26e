// What a model gives up to take less memory.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/moments.h"
#include "trainer/engine/model_config.h"

namespace gnomon {

// What of a forward pass is computed again in the backward pass instead of being kept for it: the
// product of gate and up; or all of a block but what enters it. Bits do not change.
enum class Recompute { kNone, kSwiglu, kBlock };
std::string recompute_name(Recompute recompute);  // "none", "swiglu", "block"
// Throws ConfigError naming the accepted ones.
Recompute recompute_from_name(const std::string& name, const std::string& file);

struct MemoryChoice {
  static constexpr int64_t kHeadRowsMultiple = 128;

  Recompute recompute = Recompute::kNone;
  // Tokens whose logits exist at a time, a multiple of kHeadRowsMultiple; lm_head's products and
  // scales are then made for so many tokens at a time. 0: as rows_of_logits() says.
  int64_t head_rows = 0;
  // The widest form of AdamW's moments that there is room for. A plan that wants a wider one is
  // refused; the whole run in BF16, and a pin of the moments, want FP32.
  MomentFormat moments = MomentFormat::kFp32;

  // For a micro-batch of `tokens`: all of them where they have at most 2^29 logits (1 GiB in BF16),
  // else as many as have half as much.
  int64_t rows_of_logits(const ModelConfig& model, int64_t tokens) const;
  bool operator==(const MemoryChoice&) const = default;
};

}  // namespace gnomon
