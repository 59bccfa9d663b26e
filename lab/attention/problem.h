// Attention to be checked: inputs that every machine makes alike, and FP64 results for one group of
// heads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "numerics/formats.h"

namespace gnomon {

struct AttentionCase {
  int64_t sequences = 1, tokens = 1;
  int heads = 1, kv_heads = 1, head_dim = 64;
  // "2 × 2048 tokens, 16 heads of 128 over 4"
  std::string name() const;
  // q, k and v side by side in rows of one matrix, their gradients too.
  AttentionShape shape() const;
  int64_t rows() const { return sequences * tokens; }
  int64_t width() const { return int64_t{heads} * head_dim; }  // of q and o
  int64_t row_width() const { return (int64_t{heads} + 2 * kv_heads) * head_dim; }
};

// Training's shapes with the head widths that models have, a group of heads of every size, and
// lengths that fill no tile.
std::vector<AttentionCase> default_attention_cases();

struct AttentionInputs {
  std::vector<bf16> qkv;  // [rows, row_width]
  std::vector<bf16> d_o;  // [rows, width]
};
AttentionInputs attention_inputs(const AttentionCase& problem, uint64_t seed);

struct AttentionResults {
  std::vector<bf16> o;      // [rows, width]
  std::vector<bf16> d_qkv;  // [rows, row_width]
};

// One group of heads of one sequence: o and dq [tokens, group·head_dim], dk and dv [tokens,
// head_dim].
struct AttentionGroup {
  std::vector<double> o, dq, dk, dv;
};
AttentionGroup exact_group(const AttentionCase& problem, const AttentionInputs& inputs,
                           int64_t sequence, int kv_head, int threads);
AttentionGroup group_of(const AttentionCase& problem, const AttentionResults& results,
                        int64_t sequence, int kv_head);

// 1 − 2⟨x,y⟩/(‖x‖² + ‖y‖²), DeepGEMM's measure; 1 with a NaN or infinity on either side, 0 where
// all is zero.
double attention_difference(std::span<const double> x, std::span<const double> y);

}  // namespace gnomon
