#include "trainer/engine/scaling.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/hash.h"

namespace gnomon {
namespace {

// The precision of a GEMM that quantises the tensor with the `delayed` recipe, or nullptr. Where
// several do, their histories are of one length (PrecisionPlan::check_sites).
const GemmPrecision* delayed(const SitePrecision& precision, TensorRole role) {
  for (Gemm gemm : kGemms) {
    const GemmPrecision& it = precision[gemm];
    if (it.fp8 && it.recipe == Recipe::kDelayed && reads(gemm, role)) return &it;
  }
  return nullptr;
}

}  // namespace

Quantizer quantizer_for(const GemmPrecision& precision, TensorRole role, Gemm gemm) {
  const Format format =
      role == TensorRole::kGradient ? precision.gradient_format : precision.forward_format;
  const RecipeRow& row = recipe_row(precision.recipe);
  ScaleRule rule = row.rule;
  if (rule == ScaleRule::kFp32 && precision.power_of_two) rule = ScaleRule::kPowerOfTwo;
  if (row.has_mx_scale && !precision.mx_scale_up) rule = ScaleRule::kOcpFloor;
  return {format, row.tile(role, gemm), rule};
}

void AmaxHistory::push(float amax, int length) {
  while (!entries_.empty() && entries_.back().amax <= amax) entries_.pop_back();
  entries_.push_back({pushes_++, amax});
  int64_t oldest = pushes_ - std::max(length, 1);
  auto kept = std::find_if(entries_.begin(), entries_.end(),
                           [&](const Entry& entry) { return entry.index >= oldest; });
  entries_.erase(entries_.begin(), kept);
}

void AmaxHistory::restore(int64_t pushes, std::vector<Entry> entries) {
  bool possible = pushes >= 0 && (pushes == 0) == entries.empty();
  for (size_t i = 0; possible && i < entries.size(); ++i) {
    possible = std::isfinite(entries[i].amax) && entries[i].amax > 0 && entries[i].index >= 0 &&
               entries[i].index < pushes &&
               (i == 0 ||
                (entries[i].index > entries[i - 1].index && entries[i].amax < entries[i - 1].amax));
  }
  if (!possible || (!entries.empty() && entries.back().index != pushes - 1)) {
    throw Error("an amax history with entries that no sequence of steps leaves");
  }
  pushes_ = pushes;
  entries_ = std::move(entries);
}

ScalingState::ScalingState(int sites) : tensors_(static_cast<size_t>(sites) * kTensorRoles) {}

uint64_t ScalingState::known() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const AmaxHistory& history = tensors_[i].history;
    if (history.empty()) continue;
    const bool as_before = i >= kTensorRoles && tensors_[i - kTensorRoles].history == history;
    sum += PlacedHash::term(i, as_before ? 2 : 1);
  }
  return sum;
}

void ScalingState::clear() {
  for (Tensor& tensor : tensors_) tensor = {};
}

void ScalingState::change(const std::vector<SitePrecision>& precisions) {
  GNOMON_ASSERT(precisions.size() * kTensorRoles == tensors_.size());
  for (size_t site = 0; site < precisions.size(); ++site) {
    for (TensorRole role : kAllTensorRoles) {
      if (delayed(precisions[site], role) == nullptr) at(static_cast<int>(site), role) = {};
    }
  }
}

void ScalingState::observe(int site, TensorRole role, float amax) {
  Tensor& tensor = at(site, role);
  if (std::isfinite(amax) && amax > 0) tensor.observed = std::max(tensor.observed, amax);
}

void ScalingState::forget_observed() {
  for (Tensor& tensor : tensors_) tensor.observed = -1;
}

void ScalingState::combine_observed(const std::function<void(std::span<double>)>& combine) {
  std::vector<double> observed;
  for (const Tensor& tensor : tensors_) observed.push_back(static_cast<double>(tensor.observed));
  combine(observed);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].observed = static_cast<float>(observed[i]);
  }
}

void ScalingState::finish_step(const std::vector<SitePrecision>& precisions,
                               const std::function<bool(int, TensorRole)>& frozen) {
  GNOMON_ASSERT(precisions.size() * kTensorRoles == tensors_.size());
  for (size_t index = 0; index < precisions.size(); ++index) {
    int site = static_cast<int>(index);
    for (TensorRole role : kAllTensorRoles) {
      Tensor& tensor = at(site, role);
      if (tensor.observed > 0 && (tensor.history.empty() || !frozen(site, role))) {
        const GemmPrecision* precision = delayed(precisions[index], role);
        GNOMON_ASSERT(precision != nullptr);
        tensor.history.push(tensor.observed, precision->amax_history);
      }
      tensor.observed = -1;
    }
  }
}

}  // namespace gnomon
