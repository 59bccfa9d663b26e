#include "trainer/engine/memory_choice.h"

#include <algorithm>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr Recompute kAll[] = {Recompute::kNone, Recompute::kSwiglu, Recompute::kBlock};
constexpr int64_t kLogitsMax = int64_t{1} << 29;

}  // namespace

std::string recompute_name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kSwiglu:
      return "swiglu";
    case Recompute::kBlock:
      return "block";
    default:
      return "none";
  }
}

Recompute recompute_from_name(const std::string& name, const std::string& file) {
  for (Recompute recompute : kAll) {
    if (recompute_name(recompute) == name) return recompute;
  }
  throw ConfigError(file, 0, "recompute", name, "none, swiglu, block");
}

int64_t MemoryChoice::rows_of_logits(const ModelConfig& model, int64_t tokens) const {
  if (head_rows > 0) return std::min(head_rows, tokens);
  if (tokens * model.vocabulary <= kLogitsMax) return tokens;
  const int64_t fit = kLogitsMax / 2 / model.vocabulary / kHeadRowsMultiple * kHeadRowsMultiple;
  return std::min(std::max(fit, kHeadRowsMultiple), tokens);
}

}  // namespace gnomon
