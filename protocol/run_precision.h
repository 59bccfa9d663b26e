// The part of a PrecisionPlan that is one for the whole run: how the optimizer's moments are
// stored, and in which form gradients and weights travel between ranks. docs/data_parallel.md says
// what the values mean.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace gnomon {

struct PlanRule;
class TomlTable;

// The words for moments, in the order of MomentFormat, and for what travels between ranks.
inline constexpr std::array<std::string_view, 3> kMomentWords = {"fp32", "bf16", "fp8"};
inline constexpr std::array<std::string_view, 5> kWireWords = {"full", "e4m3", "e5m2",
                                                               "e4m3:tensor", "e5m2:tensor"};

struct RunPrecision {
  std::string first_moment = "fp32";   // "fp32", "bf16", "fp8"
  std::string second_moment = "fp32";  // the same
  std::string gradients = "full";      // "full", "e4m3", "e5m2", "e4m3:tensor", "e5m2:tensor"
  std::string weights = "full";        // the same
  bool operator==(const RunPrecision&) const = default;
};

// One member of RunPrecision, as plans, attribution and people name it.
struct RunChoice {
  const char* key;   // of a rule: "second_moment"
  const char* site;  // where attribution blames a site: "optimizer.second_moment"
  const char* wide;  // the value that rounds nothing away
  std::span<const std::string_view> values;
  std::string RunPrecision::*of_run;
  std::string PlanRule::*of_rule;

  bool is_low(const RunPrecision& run) const { return run.*of_run != wide; }
  // "FP8 second moments", "gradients sent as E5M2".
  std::string words(const RunPrecision& run) const;
};
std::span<const RunChoice> run_choices();  // the likeliest culprit first
// nullptr for anything but a RunChoice's site.
const RunChoice* run_choice_of_site(std::string_view site);

// Reads the keys of a rule, `moments` and `communication` too, which stand for both of theirs.
// Throws ConfigError where the rule names one and does not match "*".
void read_run_choices(TomlTable& table, PlanRule& rule);

}  // namespace gnomon
