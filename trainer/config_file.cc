#include "trainer/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "numerics/recipes.h"
#include "trainer/device_health.h"

namespace gnomon {

std::span<const std::string_view> run_recipes() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all(run_recipe_names().begin(), run_recipe_names().end());
    all.emplace_back("bf16");
    return all;
  }();
  return names;
}

// Names end up in URLs, paths and metric labels.
std::string identifier_error(std::string_view name) {
  constexpr size_t kMost = 100;
  const bool plain = std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
  if (!name.empty() && name.size() <= kMost && plain && name[0] != '.') return {};
  return fmt::format("1 to {} letters, digits, '_', '-' and '.', not beginning with '.'", kMost);
}

std::string bus_id_error(std::string_view id) {
  return is_pci_bus_id(std::string(id))
             ? ""
             : "a GPU's PCI bus id, like \"0000:01:00.0\", as nvidia-smi shows it";
}

void ModelTable::settle(const TomlTable& table) {
  if (!table.has("kv_heads")) shape.kv_heads = std::min(shape.kv_heads, shape.heads);
  if (!table.has("from")) return;
  ModelConfig::describe([&](const char* key, auto&& /*member*/, const Setting& /*setting*/) {
    if (table.has(key)) table.refuse(key, "nothing: the model's shape is that of model.from");
  });
}

void PrecisionTable::settle(const TomlTable& table) const {
  if (plan.empty() == recipe.has_value()) return;
  table.refuse(plan.empty() ? "recipe" : "plan",
               fmt::format("either plan = \"FILE.toml\" or recipe = one of {}",
                           fmt::join(run_recipes(), ", ")));
}

void VerificationConfig::settle(const TomlTable& table) const {
  if (table.has("share_max") && !by_trainer && !confirms) {
    table.refuse("share_max",
                 "nothing while verification.inline and verification.confirm are false");
  }
}

void FaultTable::settle(const TomlTable& table) {
  const FaultTraits& traits = fault_traits(kind);
  // Keys that would have no effect are a mistake.
  Fault::describe([&](std::string_view key, auto&& /*member*/, const Setting& /*setting*/) {
    if (key == "kind" || key == "start_step" || !table.has(key)) return;
    const bool known =
        key == "site" ? traits.place != FaultPlace::kNothing : traits.has(std::string(key));
    if (!known) table.refuse(key, fmt::format("nothing: kind \"{}\" has no {}", traits.name, key));
  });
  if (!table.has("site") && traits.place == FaultPlace::kSites) site = std::string("*");
  if (!table.has("tensor") && kind == FaultKind::kStuckBit) tensor = "output";
  if (kind == FaultKind::kBitFlip) {
    if (!table.has("tensor")) tensor = "weight";
    if (tensor == "input") table.refuse("tensor", "weight, gradient");
  }
  if (!table.has("bit") && kind == FaultKind::kStuckBit) bit = 15;
  if (!table.has("format") &&
      (kind == FaultKind::kCoarseRecipe || kind == FaultKind::kFp8SecondMoment)) {
    format = "e4m3";
  }
  if (!table.has("steps") &&
      (kind == FaultKind::kOutlierChannel || kind == FaultKind::kSkippedBatch)) {
    steps = 1;
  }
}

void OptimizerTable::settle(const TomlTable& table) {
  const OptimizerRow& row = optimizer_row(name);
  for (std::string_view key : row.unused_keys) {
    if (!table.has(key)) continue;
    table.refuse(key, fmt::format("nothing: optimizer \"{}\" has no {}", row.name, key));
  }
  if (!table.has("beta1")) beta1 = row.beta1;
  if (!table.has("beta2")) beta2 = row.beta2;
}

void ConfigFile::settle(const TomlTable& root) {
  TomlTable table = root;
  const TomlTable given = table.table("optimizer");
  if (!given.has("total_steps")) optimizer.total_steps = run.steps;
  if (!given.has("warmup_steps")) {
    optimizer.warmup_steps = std::min(optimizer.warmup_steps, optimizer.total_steps);
  }
  const TomlTable looks = table.table("statistics");
  for (const char* key : {"match", "tensors", "what_if", "sites_max"}) {
    if (looks.has(key) && !looks.has("every")) {
      looks.refuse(key, "nothing while statistics.every does not say every how many steps");
    }
  }
  if (statistics.every > 0 && model.compute == Compute::kFp32) {
    looks.refuse("every", "nothing for model.compute = \"fp32\", which rounds no tensor");
  }
  if (memory.head_rows % MemoryChoice::kHeadRowsMultiple != 0) {
    table.table("memory").refuse(
        "head_rows", fmt::format("0 or a multiple of {}", MemoryChoice::kHeadRowsMultiple));
  }
}

}  // namespace gnomon
