// A PrecisionPlan maps every GEMM of the model (HF module name × fprop/dgrad/wgrad) to a number
// format and a scaling recipe. It is data: written as TOML, versioned, sent in directives, kept in
// checkpoints. The whole run in BF16 is just one more plan. Rules are tried in order and the last
// match wins, key by key.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

enum class Gemm { kFprop = 0, kDgrad = 1, kWgrad = 2 };
inline constexpr std::array<Gemm, 3> kGemms = {Gemm::kFprop, Gemm::kDgrad, Gemm::kWgrad};
std::string_view gemm_name(Gemm gemm);  // "fprop", "dgrad", "wgrad"

// How the scale of a low-precision tensor is chosen. NUMERICS.md has the formulas.
enum class Recipe { kCurrent, kDelayed };
std::string_view recipe_name(Recipe recipe);  // "current", "delayed"

// How one site's three GEMMs run.
struct SitePrecision {
  std::array<bool, 3> fp8 = {false, false, false};  // by Gemm; false means BF16
  std::string forward_format = "e4m3";              // activations and weights: "e4m3" or "e5m2"
  std::string gradient_format = "e5m2";             // output gradients
  Recipe recipe = Recipe::kCurrent;
  int amax_history = 1024;  // steps, `delayed` only
  int margin = 0;           // `delayed`: scale = FP8_MAX / amax / 2^margin

  bool uses_fp8(Gemm gemm) const { return fp8[static_cast<int>(gemm)]; }
  bool any_fp8() const { return fp8[0] || fp8[1] || fp8[2]; }
  // The GEMM multiplies E5M2 by E5M2, which no hardware does (NUMERICS.md): fprop multiplies two
  // tensors in the forward format, dgrad and wgrad one in it and one in the gradient format.
  bool multiplies_e5m2_by_e5m2(Gemm gemm) const;
  bool operator==(const SitePrecision&) const = default;
};

// One [[rule]]: unset keys (empty string, -1) leave what earlier rules said.
struct PlanRule {
  std::string
      match;  // glob over module names; {a,b} alternatives; "last" inside braces is the last layer
  std::array<std::string, 3> gemms;  // by Gemm: "", "fp8" or "bf16"
  std::string forward_format;
  std::string gradient_format;
  std::string recipe;
  int amax_history = -1;
  int margin = -1000;
  int line = 0;  // in the file it came from, for messages
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
  // Every site, every GEMM in FP8: E4M3 forward, E5M2 gradients.
  static PrecisionPlan fp8(Recipe recipe = Recipe::kCurrent);

  // This plan with one more rule behind the others: all three GEMMs of each of `sites` in BF16.
  PrecisionPlan with_bf16_sites(const std::vector<std::string>& sites) const;

  // Precision of a site. `layers` is the model's number of layers (for "last").
  SitePrecision resolve(const std::string& site, int layers) const;
  // Throws ConfigError when a rule matches no one of `sites` (a typing error nobody would notice
  // otherwise), and when a GEMM of a site would multiply E5M2 by E5M2 without
  // `allow_e5m2_e5m2`.
  void check_sites(const std::vector<std::string>& sites, int layers,
                   const std::string& file = "plan") const;

  std::string to_toml() const;

  int64_t version = 0;
  bool allow_e5m2_e5m2 = false;  // for studies in emulation: such a plan runs on no hardware
  std::vector<PlanRule> rules;

 private:
  [[noreturn]] void refuse_e5m2_by_e5m2(const std::string& site, Gemm gemm, int layers,
                                        const std::string& file) const;
};

// "model.layers.*.mlp.{up_proj,down_proj}" against a module name. '*' crosses dots, '?' is one
// character.
bool site_matches(std::string_view glob, std::string_view site, int layers);

}  // namespace gnomon
