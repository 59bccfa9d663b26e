#include "trainer/engine/memory_choice.h"

#include <algorithm>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr int64_t kLogitsMax = int64_t{1} << 29;

}  // namespace

std::string recompute_name(Recompute recompute) {
  return std::string(kRecomputes[static_cast<size_t>(recompute)]);
}

Recompute recompute_from_name(const std::string& name, const std::string& file) {
  const auto found = std::ranges::find(kRecomputes, name);
  if (found == kRecomputes.end()) {
    throw ConfigError(file, 0, "recompute", name, "none, swiglu, block");
  }
  return static_cast<Recompute>(found - kRecomputes.begin());
}

int64_t MemoryChoice::rows_of_logits(const ModelConfig& model, int64_t tokens) const {
  if (head_rows > 0) return std::min(head_rows, tokens);
  if (tokens * model.vocabulary <= kLogitsMax) return tokens;
  const int64_t fit = kLogitsMax / 2 / model.vocabulary / kHeadRowsMultiple * kHeadRowsMultiple;
  return std::min(std::max(fit, kHeadRowsMultiple), tokens);
}

}  // namespace gnomon
