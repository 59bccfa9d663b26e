#include "numerics/recipes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr RecipeRow kRecipeRows[] = {
    {.recipe = Recipe::kCurrent,
     .name = "current",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE5m2,
     .power_of_two = false},
    {.recipe = Recipe::kDelayed,
     .name = "delayed",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE5m2,
     .rule = ScaleRule::kGiven},
    {.recipe = Recipe::kRowwise,
     .name = "rowwise",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .strip = 0,
     .power_of_two = true,
     .multiple = 16},
    {.recipe = Recipe::kRowwiseGwHp,
     .name = "rowwise_gw_hp",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .strip = 0,
     .whole_weight_in_dgrad = true,
     .keeps_wgrad = true,
     .power_of_two = true,
     .multiple = 16},
    {.recipe = Recipe::kBlock,
     .name = "block",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .strip = 128,
     .weight_side = 128,
     .power_of_two = true,
     .promotes_fprop = true,
     .multiple = 16},
    {.recipe = Recipe::kMx,
     .name = "mx",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .rule = ScaleRule::kPowerOfTwo,
     .strip = 32,
     .has_mx_scale = true,
     .promotes_fprop = true,
     .on_hopper = false,
     .multiple = 32},
    {.recipe = Recipe::kTile64,
     .name = "tile64",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .strip = 64,
     .weight_side = 64,
     .power_of_two = false,
     .promotes_fprop = true,
     .multiple = 16},
    {.recipe = Recipe::kNone,
     .name = "none",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .rule = ScaleRule::kNone},
    {.recipe = Recipe::kTensorwise,
     .name = "tensorwise",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE5m2,
     .ours = false,
     .multiple = 16},
    {.recipe = Recipe::kRowwiseWithGwHp,
     .name = "rowwise_with_gw_hp",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .keeps_wgrad = true,
     .ours = false,
     .multiple = 16},
    {.recipe = Recipe::kMxfp8,
     .name = "mxfp8",
     .forward_format = Format::kE4m3,
     .gradient_format = Format::kE4m3,
     .ours = false,
     .multiple = 16},
    {.recipe = Recipe::kNvfp4,
     .name = "nvfp4",
     .forward_format = Format::kE2m1,
     .gradient_format = Format::kE2m1,
     .ours = false,
     .multiple = 16},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kRecipeRows); ++i) {
    if (kRecipeRows[i].recipe != static_cast<Recipe>(i)) return false;
  }
  return true;
}
static_assert(in_order());

// True when the GEMM sums over the rows of the tensor as it is stored: dW = dYᵀ·X over the tokens,
// dX = dY·W over the outputs.
bool sums_over_rows(TensorRole role, Gemm gemm) {
  if (gemm == Gemm::kWgrad) return true;
  return gemm == Gemm::kDgrad && role == TensorRole::kWeight;
}

}  // namespace

Gemm gemm_from_name(std::string_view name) {
  const auto found = std::ranges::find(kGemms, name, gemm_name);
  if (found != kGemms.end()) return *found;
  throw Error(
      fmt::format("GEMM \"{}\" is unknown; accepted: {}", name, fmt::join(kGemmNames, ", ")));
}

std::string_view tensor_role_name(TensorRole role) {
  constexpr std::array<std::string_view, kTensorRoles> kNames = {"input", "weight", "gradient"};
  return kNames[static_cast<size_t>(role)];
}

TensorRole tensor_role_from_name(std::string_view name) {
  const auto found = std::ranges::find(kAllTensorRoles, name, tensor_role_name);
  if (found != kAllTensorRoles.end()) return *found;
  throw Error(fmt::format("tensor \"{}\" is unknown; accepted: input, weight, gradient", name));
}

bool reads(Gemm gemm, TensorRole role) {
  switch (role) {
    case TensorRole::kInput:
      return gemm != Gemm::kDgrad;
    case TensorRole::kWeight:
      return gemm != Gemm::kWgrad;
    case TensorRole::kGradient:
      return gemm != Gemm::kFprop;
  }
  return false;
}

TileShape RecipeRow::tile(TensorRole role, Gemm gemm) const {
  const bool weight = role == TensorRole::kWeight;
  if (strip == kWhole || (weight && whole_weight_in_dgrad && gemm == Gemm::kDgrad)) return {};
  if (weight && weight_side > 0) return {weight_side, weight_side};
  return sums_over_rows(role, gemm) ? TileShape{strip, 1} : TileShape{1, strip};
}

std::span<const RecipeRow> recipe_rows() { return kRecipeRows; }

const RecipeRow& recipe_row(Recipe recipe) { return kRecipeRows[static_cast<size_t>(recipe)]; }

const RecipeRow* recipe_row(std::string_view name) {
  const RecipeRow* const found = std::ranges::find(kRecipeRows, name, &RecipeRow::name);
  return found != std::end(kRecipeRows) ? found : nullptr;
}

std::vector<std::string_view> recipe_names(bool (*is)(const RecipeRow&)) {
  std::vector<std::string_view> names;
  for (const RecipeRow& row : kRecipeRows) {
    if (is(row)) names.push_back(row.name);
  }
  return names;
}

std::span<const std::string_view> run_recipe_names() {
  static const std::vector<std::string_view> names =
      recipe_names([](const RecipeRow& row) { return row.ours && row.rule != ScaleRule::kNone; });
  return names;
}

std::string_view recipe_name(Recipe recipe) { return recipe_row(recipe).name; }

Recipe recipe_from_name(std::string_view name) {
  const RecipeRow* const row = recipe_row(name);
  if (row != nullptr && row->ours) return row->recipe;
  throw Error(fmt::format("recipe \"{}\" is unknown; accepted: {}", name,
                          fmt::join(recipe_names(is_ours), ", ")));
}

}  // namespace gnomon
