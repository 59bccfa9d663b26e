// The table of recipes: how the scales of a low-precision tensor are chosen, and for which parts of
// it. docs/recipes.md has the formulas and what each is modelled on. To add a recipe, add a row to
// recipes.cc and its name to Recipe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/formats.h"
#include "numerics/quantizer.h"

namespace gnomon {

// The three GEMMs of a linear layer, and the tensors that they read: fprop Y = X·Wᵀ, dgrad
// dX = dY·W, wgrad dW = dYᵀ·X. Tensors as they are stored, row-major: input X [n, in], weight
// W [out, in], gradient dY [n, out].
enum class Gemm { kFprop = 0, kDgrad = 1, kWgrad = 2 };
inline constexpr std::array<Gemm, 3> kGemms = {Gemm::kFprop, Gemm::kDgrad, Gemm::kWgrad};
inline constexpr std::array<std::string_view, 3> kGemmNames = {"fprop", "dgrad", "wgrad"};
constexpr std::string_view gemm_name(Gemm gemm) { return kGemmNames[static_cast<size_t>(gemm)]; }
Gemm gemm_from_name(std::string_view name);  // throws Error naming the accepted ones

enum class TensorRole { kInput = 0, kWeight = 1, kGradient = 2 };
inline constexpr int kTensorRoles = 3;
inline constexpr std::array<TensorRole, kTensorRoles> kAllTensorRoles = {
    TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradient};
std::string_view tensor_role_name(TensorRole role);       // "input", "weight", "gradient"
TensorRole tensor_role_from_name(std::string_view name);  // throws Error naming the accepted ones
// True when the GEMM reads the tensor.
bool reads(Gemm gemm, TensorRole role);

enum class Recipe {
  kCurrent,
  kDelayed,
  kRowwise,
  kRowwiseGwHp,  // rowwise, but wgrad in BF16 and the weight of dgrad with one scale
  kBlock,
  kMx,
  kTile64,
  kNone,  // no scale at all: the reduced-mantissa formats e8m3 to e8m6
  // Other frameworks' (torchao, TransformerEngine). Our engine has none of them; for the controller
  // they are names.
  kTensorwise,
  kRowwiseWithGwHp,  // keeps wgrad in BF16
  kMxfp8,
  kNvfp4,
};

struct RecipeRow {
  Recipe recipe;
  std::string_view name;
  Format forward_format;   // of activations and weights, by default
  Format gradient_format;  // of output gradients, by default
  // kFp32: a scale of its own for each tile; powers of two where the plan wants them.
  ScaleRule rule = ScaleRule::kFp32;
  // Elements of a tile along what is summed over: kWhole = one tile, 0 = all of them.
  int64_t strip = kWhole;
  // Side of the weight's square tiles; 0 = as other tensors.
  int64_t weight_side = 0;
  bool whole_weight_in_dgrad = false;  // one scale there
  bool keeps_wgrad = false;            // wgrad stays in BF16
  // The default of the plan's key power_of_two; nothing where the recipe has no such key.
  std::optional<bool> power_of_two = {};
  bool has_mx_scale = false;    // the plan's key mx_scale
  bool promotes_fprop = false;  // Hopper's sums move to FP32 in fprop, too
  bool on_hopper = true;        // Hopper can multiply it
  bool ours = true;             // this engine has it
  // What cuBLASLt needs the sizes of a GEMM to be multiples of: 16, which FP8 operands need, and 32
  // for mx; 1 where the tensor has one scale or none.
  int64_t multiple = 1;

  static constexpr int64_t kWhole = -1;

  // The tiles that share a scale when this GEMM reads the tensor.
  TileShape tile(TensorRole role, Gemm gemm) const;
};

// All of them, in the order of Recipe.
std::span<const RecipeRow> recipe_rows();
const RecipeRow& recipe_row(Recipe recipe);
// Null when no recipe has the name.
const RecipeRow* recipe_row(std::string_view name);
// The names of those for which `is` holds, in their order.
std::vector<std::string_view> recipe_names(bool (*is)(const RecipeRow&));
inline bool is_ours(const RecipeRow& row) { return row.ours; }
// Ours that a whole run may have: those with scales, since others have no formats of their own.
std::span<const std::string_view> run_recipe_names();

std::string_view recipe_name(Recipe recipe);
inline bool is_foreign(Recipe recipe) { return !recipe_row(recipe).ours; }
// One of ours. Throws Error naming the accepted ones.
Recipe recipe_from_name(std::string_view name);

}  // namespace gnomon
