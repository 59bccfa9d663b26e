// What a model gives up to take less memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/moments.h"
#include "protocol/run_precision.h"
#include "trainer/engine/model_config.h"

namespace gnomon {

// What of a forward pass is computed again in the backward pass instead of being kept for it: the
// product of gate and up; or all of a block but what enters it. Bits do not change.
enum class Recompute { kNone, kSwiglu, kBlock };
inline constexpr std::array<std::string_view, 3> kRecomputes = {"none", "swiglu", "block"};
std::string recompute_name(Recompute recompute);
// Throws ConfigError naming the accepted ones.
Recompute recompute_from_name(const std::string& name, const std::string& file);

struct MemoryChoice {
  static constexpr int64_t kHeadRowsMultiple = 128;

  Recompute recompute = Recompute::kNone;
  // Tokens whose logits exist at a time, a multiple of kHeadRowsMultiple; lm_head's products and
  // scales are then made for so many tokens at a time. 0: as rows_of_logits() says.
  int64_t head_rows = 0;
  // The widest form of the optimizer's moments that there is room for. A plan that wants a wider
  // one is refused; the whole run in BF16, and a pin of the moments, want FP32.
  MomentFormat moments = MomentFormat::kFp32;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("recompute", &MemoryChoice::recompute,
      Setting{.words = kRecomputes,
              .help = "What the backward pass recomputes to save memory: product of gate and up, "
                      "or whole layers. Same bits."});
    v("head_rows", &MemoryChoice::head_rows,
      Setting{.range = {0, 1 << 30},
              .unit = "tokens",
              .accepted = "0 or a multiple of 128",
              .help = "Tokens in one lm_head GEMM; changes bits. 0: the micro-batch if it has at "
                      "most 2²⁹ logits, else parts with at most 2²⁸."});
    v("moments", &MemoryChoice::moments,
      Setting{
          .words = kMomentWords,
          .help =
              "Widest moments that memory is allocated for. Plans with wider ones, BF16 included, "
              "are refused ([data_parallel.md](data_parallel.md#moments-in-low-precision))."});
  }

  // For a micro-batch of `tokens`: all of them where they have at most 2^29 logits (1 GiB in BF16),
  // else as many as have half as much.
  int64_t rows_of_logits(const ModelConfig& model, int64_t tokens) const;
  bool operator==(const MemoryChoice&) const = default;
};

}  // namespace gnomon
