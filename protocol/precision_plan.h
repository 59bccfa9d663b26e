// A PrecisionPlan maps every GEMM of the model (HF module name × fprop/dgrad/wgrad) to a number
// format and a scaling recipe, and says how the optimizer's moments are stored and what travels
// between ranks. It is data: written as TOML, versioned, sent in directives, kept in
// checkpoints. The whole run in BF16 is just one more plan. Rules are tried in order and the last
// match wins, key by key.
//
// A PlanRule keeps the plan's words. PrecisionPlan::resolve reads them, and what it returns has
// enums: nothing behind it compares words.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/formats.h"
#include "numerics/recipes.h"
#include "protocol/run_precision.h"

namespace gnomon {

// How a GEMM over low-precision operands adds up.
enum class Accumulate {
  kFp32,
  kHopper,  // as Hopper's tensor cores do: kernels/scaled_product.h
};

Accumulate accumulate_from_name(std::string_view name);  // throws Error naming the accepted ones

// How one GEMM of a site runs.
struct GemmPrecision {
  bool fp8 = false;                        // low precision; false means BF16
  Format forward_format = Format::kE4m3;   // activations and weights
  Format gradient_format = Format::kE5m2;  // output gradients
  Recipe recipe = Recipe::kCurrent;
  int amax_history = 1024;    // steps, `delayed` only
  int margin = 0;             // `delayed`: scale = FP8_MAX / amax / 2^margin
  bool power_of_two = false;  // no other scales
  bool mx_scale_up = true;    // `mx`: so that nothing saturates; otherwise OCP's rule
  Accumulate accumulate = Accumulate::kFp32;
  // kHopper: terms after which a sum moves to FP32; 0 = never, kPromoteByRecipe = promotion().
  int promote_every = kPromoteByRecipe;

  static constexpr int kPromoteByRecipe = -1;

  // This recipe with its defaults for the formats, power_of_two and mx_scale_up.
  void choose(Recipe chosen);
  // promote_every, or the recipe's default for this GEMM: every 128 terms, but never in fprop
  // unless the recipe promotes there (RecipeRow), as TransformerEngine and torchao run them.
  int promotion(Gemm gemm) const;
  bool operator==(const GemmPrecision&) const = default;
};

// How one site's three GEMMs run.
struct SitePrecision {
  std::array<GemmPrecision, 3> gemms;  // by Gemm

  GemmPrecision& operator[](Gemm gemm) { return gemms[static_cast<size_t>(gemm)]; }
  const GemmPrecision& operator[](Gemm gemm) const { return gemms[static_cast<size_t>(gemm)]; }
  bool uses_fp8(Gemm gemm) const { return (*this)[gemm].fp8; }
  bool any_fp8() const { return gemms[0].fp8 || gemms[1].fp8 || gemms[2].fp8; }
  // The GEMM multiplies E5M2 by E5M2, which no hardware does: fprop multiplies two
  // tensors in the forward format, dgrad and wgrad one in it and one in the gradient format.
  bool multiplies_e5m2_by_e5m2(Gemm gemm) const;
  // The recipe's name, or where GEMMs differ the names of fprop, dgrad and wgrad: "current/mx/mx".
  // Those in BF16 are passed over, unless all are.
  std::string recipes() const;
  bool operator==(const SitePrecision&) const = default;
};

// One [[rule]]: unset keys (empty string, -1) leave what earlier rules said, but a rule that names
// a recipe takes that recipe's defaults for the formats, power_of_two and mx_scale that it does not
// name itself.
struct PlanRule {
  std::string
      match;  // glob over module names; {a,b} alternatives; "last" inside braces is the last layer
  std::array<bool, 3> only = {true, true, true};  // by Gemm: whether the rule is about it
  std::array<std::string, 3> gemms;               // by Gemm: "", "fp8" or "bf16"
  std::string forward_format;
  std::string gradient_format;
  std::string recipe;
  int amax_history = -1;
  int margin = -1000;
  int line = 0;            // in the file it came from, for messages
  int power_of_two = -1;   // 0, 1
  std::string mx_scale;    // "up", "ocp"
  std::string accumulate;  // "fp32", "hopper"
  int promote_every = -1;
  // A rule with one of these is about the whole run and matches "*".
  std::string first_moment, second_moment, gradients, weights;

  bool is_about(Gemm gemm) const { return only[static_cast<size_t>(gemm)]; }
};

class PrecisionPlan {
 public:
  // The whole run in BF16: no rule at all.
  PrecisionPlan() = default;

  // Parses TOML; `file` is used in messages only. Throws ConfigError (file, line, key, value,
  // accepted) on unknown keys, formats, recipes and GEMM values.
  static PrecisionPlan parse(std::string_view toml, const std::string& file = "plan");
  static PrecisionPlan load(const std::string& path);
  static PrecisionPlan bf16() { return {}; }
  // Every site, every GEMM in FP8 with the recipe's own formats. Not for kNone, which has none.
  static PrecisionPlan fp8(Recipe recipe = Recipe::kCurrent,
                           Accumulate accumulate = Accumulate::kFp32);

  // This plan with one more rule behind the others: all three GEMMs of each of `sites` in BF16; the
  // site of a RunChoice at its wide value.
  PrecisionPlan with_bf16_sites(const std::vector<std::string>& sites) const;

  // This plan with one more rule for what `run` has otherwise than it.
  PrecisionPlan with_run(const RunPrecision& run) const;

  // Precision of a site. `layers` is the model's number of layers (for "last").
  SitePrecision resolve(const std::string& site, int layers) const;
  RunPrecision of_run() const;
  // Throws ConfigError when a rule matches no one of `sites` (a typing error nobody would notice
  // otherwise), when a GEMM of a site would multiply E5M2 by E5M2 without `allow_e5m2_e5m2`, and
  // when what the rules say of a GEMM contradicts itself (a format without exponent range to spare
  // and no scale, a key that its recipe does not have, ...), or two GEMMs that share a history
  // want it of different lengths.
  void check_sites(const std::vector<std::string>& sites, int layers,
                   const std::string& file = "plan") const;

  std::string to_toml() const;

  // The last rule about this GEMM of the site for which `is` holds, or nullptr.
  const PlanRule* last_rule(const std::string& site, Gemm gemm, int layers,
                            const std::function<bool(const PlanRule&)>& is) const;

  int64_t version = 0;
  // For studies in emulation: such a plan runs on no hardware.
  bool allow_e5m2_e5m2 = false;
  bool allow_ragged_tiles = false;  // shapes that cuBLASLt does not take: tile_multiple()
  // A device without FP8 is refused; otherwise the trainer runs in BF16 there and says so.
  bool required = false;
  std::vector<PlanRule> rules;

 private:
  [[noreturn]] void refuse_e5m2_by_e5m2(const std::string& site, Gemm gemm, int layers,
                                        const std::string& file) const;
  void check_histories(const std::string& site, int layers, const std::string& file) const;
};

// "model.layers.*.mlp.{up_proj,down_proj}" against a module name. '*' crosses dots, '?' is one
// character.
bool site_matches(std::string_view glob, std::string_view site, int layers);

}  // namespace gnomon
