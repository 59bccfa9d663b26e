#include "trainer/config_faults.h"

#include <fmt/format.h>

#include <limits>

#include "base/errors.h"
#include "trainer/engine/fault_check.h"

namespace gnomon {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int kMostInt = std::numeric_limits<int>::max();

// Every key that some kind has.
constexpr const char* kKeys[] = {"site",  "tensor", "end_step",     "log2_factor", "element",
                                 "bit",   "format", "gemm",         "factor",      "steps",
                                 "terms", "value",  "fraction_bits"};

const FaultTraits& read_kind(TomlTable& table) {
  std::vector<std::string> kinds;
  for (const FaultTraits& traits : all_faults()) kinds.emplace_back(traits.name);
  const std::string kind = table.choice("kind", "", kinds);
  if (kind.empty()) table.refuse("kind", fmt::format("one of {}", fmt::join(kinds, ", ")));
  return fault_traits(fault_kind_from_name(kind));
}

// Keys that would have no effect are a mistake.
void refuse_what_the_kind_ignores(const TomlTable& table, const FaultTraits& traits) {
  for (const std::string key : kKeys) {
    const bool known = key == "site" ? traits.place != FaultPlace::kNothing : traits.has(key);
    if (!known && table.has(key)) {
      table.refuse(key, fmt::format("nothing: kind \"{}\" has no {}", traits.name, key));
    }
  }
}

// What a kind has by itself.
Fault defaults(const FaultTraits& traits) {
  Fault fault{.kind = traits.kind};
  if (traits.place == FaultPlace::kSites) fault.site = std::string("*");
  switch (traits.kind) {
    case FaultKind::kStuckBit:
      fault.tensor = "output";
      fault.bit = 15;
      break;
    case FaultKind::kCoarseRecipe:
    case FaultKind::kFp8SecondMoment:
      fault.format = "e4m3";
      break;
    case FaultKind::kOutlierChannel:
    case FaultKind::kSkippedBatch:
      fault.steps = 1;
      break;
    default:
      break;
  }
  return fault;
}

void read_numbers(TomlTable& table, Fault& fault) {
  auto number = [&](const char* key, int fallback) {
    return static_cast<int>(table.integer(key, fallback, -kMostInt, kMostInt));
  };
  fault.log2_factor = number("log2_factor", fault.log2_factor);
  fault.element = table.integer("element", fault.element, 0, kMost);
  fault.bit = number("bit", fault.bit);
  fault.factor = table.number("factor", fault.factor, 0, 1e300);
  fault.steps = table.integer("steps", fault.steps, 0, kMost);
  fault.terms = table.integer("terms", fault.terms, 0, kMost);
  fault.value = number("value", fault.value);
  fault.fraction_bits = number("fraction_bits", fault.fraction_bits);
}

// A fault of moments or communication acts where the plan has them in FP8 alone.
void check_plan_feels(const TomlTable& table, FaultKind kind, const RunPrecision& run) {
  if (kind == FaultKind::kFp8SecondMoment && run.second_moment != "fp8") {
    table.refuse("kind", "this fault in a run with optimizer.second_moment = \"fp8\"");
  }
  if (kind == FaultKind::kWireScaleShift && run.gradients == "full") {
    table.refuse("kind", "this fault in a run with ranks.gradients in FP8");
  }
}

}  // namespace

Fault read_fault(TomlTable& table, const EngineConfig& engine, const PrecisionPlan& plan) {
  const FaultTraits& traits = read_kind(table);
  refuse_what_the_kind_ignores(table, traits);
  Fault fault = defaults(traits);
  fault.site = table.text("site", fault.site);
  fault.tensor = table.text("tensor", fault.tensor);
  fault.format = table.text("format", fault.format);
  fault.gemm = table.text("gemm", fault.gemm);
  fault.start_step = table.integer("start_step", -1, 1, kMost);
  if (fault.start_step < 1) table.refuse("start_step", "the first step it acts in, at least 1");
  fault.end_step = table.integer("end_step", 0, 0, kMost);
  read_numbers(table, fault);
  table.refuse_unknown_keys();
  check_plan_feels(table, fault.kind, plan.of_run());
  try {
    check_fault(fault, engine);
  } catch (const ConfigError& error) {
    table.refuse(error.key(), error.accepted());
  }
  return fault;
}

}  // namespace gnomon
