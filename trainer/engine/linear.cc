#include "trainer/engine/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/errors.h"
#include "kernels/recipe.h"

namespace gnomon {

template <class E>
LinearLayers<E>::LinearLayers(BackendOf<E>& backend, const std::vector<std::string>& sites,
                              const std::vector<Fault>& faults, ScalingState& scaling)
    : backend_(backend), scaling_(scaling) {
  for (const Fault& fault : faults) {
    if (fault.kind != FaultKind::kFrozenAmax && fault.kind != FaultKind::kScaleShift) continue;
    auto site = std::find(sites.begin(), sites.end(), fault.site);
    if (site == sites.end()) {
      throw ConfigError("fault", 0, "site", fault.site,
                        fmt::format("one of the {} GEMM sites {} to {}", sites.size(),
                                    sites.front(), sites.back()));
    }
    if (fault.tensor != "input" && fault.tensor != "weight" && fault.tensor != "gradient") {
      throw ConfigError("fault", 0, "tensor", fault.tensor, "input, weight, gradient");
    }
    if (std::abs(fault.log2_factor) > 60) {
      throw ConfigError("fault", 0, "log2_factor", std::to_string(fault.log2_factor), "-60 to 60");
    }
    faults_.push_back({fault.kind, static_cast<int>(site - sites.begin()),
                       tensor_role_from_name(fault.tensor), fault});
  }
}

template <class E>
int LinearLayers<E>::shift(int site, TensorRole role) const {
  int sum = 0;
  for (const SiteFault& it : faults_) {
    if (it.kind == FaultKind::kScaleShift && it.site == site && it.role == role &&
        it.fault.active(pass_.step)) {
      sum += it.fault.log2_factor;
    }
  }
  return sum;
}

template <class E>
bool LinearLayers<E>::frozen(int site, TensorRole role, int64_t step) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const SiteFault& it) {
    return it.kind == FaultKind::kFrozenAmax && it.site == site && it.role == role &&
           it.fault.active(step);
  });
}

template <class E>
float LinearLayers<E>::scale_for(int site, TensorRole role, GemmOperand<E>& operand,
                                 Format format) requires std::is_same_v<E, bf16> {
  const SitePrecision& precision = (*pass_.sites)[static_cast<size_t>(site)];
  const AmaxHistory& history = scaling_.history(site, role);
  bool from_history = precision.recipe == Recipe::kDelayed && !history.empty();
  if (!operand.amax_known && (!from_history || pass_.record)) {
    operand.amax = backend_.amax(operand.data);
    operand.amax_known = true;
  }
  if (precision.recipe == Recipe::kCurrent) return current_scale(operand.amax, format);
  if (pass_.record) scaling_.observe(site, role, operand.amax);
  return delayed_scale(from_history ? history.max() : operand.amax, format, precision.margin, 1.0f);
}

template <class E>
typename LinearLayers<E>::Ready LinearLayers<E>::quantise(
    int site, TensorRole role, GemmOperand<E>& operand) requires std::is_same_v<E, bf16> {
  const SitePrecision& precision = (*pass_.sites)[static_cast<size_t>(site)];
  Format format = format_from_name(role == TensorRole::kGradient ? precision.gradient_format
                                                                 : precision.forward_format);
  float scale = std::ldexp(scale_for(site, role, operand, format), shift(site, role));
  if (!operand.quantised || operand.format != format || operand.scale != scale) {
    backend_.quantize(operand.data, format, scale, {operand.room, operand.data.size()});
    operand.quantised = true;
    operand.format = format;
    operand.scale = scale;
  }
  return {operand.room, 1.0f / scale};
}

template <class E>
typename LinearLayers<E>::Operands LinearLayers<E>::operands(int site, Gemm gemm, TensorRole role_a,
                                                             GemmOperand<E>& a, TensorRole role_b,
                                                             GemmOperand<E>& b) {
  if (!(*pass_.sites)[static_cast<size_t>(site)].uses_fp8(gemm)) {
    return {{a.data.data(), 1.0f}, {b.data.data(), 1.0f}};
  }
  if constexpr (std::is_same_v<E, bf16>) {
    return {quantise(site, role_a, a), quantise(site, role_b, b)};
  } else {
    GNOMON_ASSERT(!"an FP8 plan for a model of FP32 elements");
    return {};
  }
}

template <class E>
void LinearLayers<E>::fprop(int site, GemmOperand<E>& x, GemmOperand<E>& w, int64_t n, int64_t in,
                            int64_t out, E* y) {
  Operands use = operands(site, Gemm::kFprop, TensorRole::kInput, x, TensorRole::kWeight, w);
  GemmShape shape{.m = n, .n = out, .k = in, .transpose_a = false, .transpose_b = true};
  backend_.gemm(shape, use.alpha(), use.a.data, use.b.data, y);
}

template <class E>
void LinearLayers<E>::dgrad(int site, GemmOperand<E>& dy, GemmOperand<E>& w, int64_t n, int64_t in,
                            int64_t out, E* dx) {
  Operands use = operands(site, Gemm::kDgrad, TensorRole::kGradient, dy, TensorRole::kWeight, w);
  GemmShape shape{.m = n, .n = in, .k = out, .transpose_a = false, .transpose_b = false};
  backend_.gemm(shape, use.alpha(), use.a.data, use.b.data, dx);
}

template <class E>
void LinearLayers<E>::dgrad(int site, GemmOperand<E>& dy, GemmOperand<E>& w, int64_t n, int64_t in,
                            int64_t out, float* dx, bool accumulate) {
  Operands use = operands(site, Gemm::kDgrad, TensorRole::kGradient, dy, TensorRole::kWeight, w);
  GemmShape shape{.m = n, .n = in, .k = out, .transpose_a = false, .transpose_b = false};
  backend_.gemm(shape, use.alpha(), use.a.data, use.b.data, dx, accumulate);
}

template <class E>
void LinearLayers<E>::wgrad(int site, GemmOperand<E>& dy, GemmOperand<E>& x, int64_t n, int64_t in,
                            int64_t out, float* dw, bool accumulate) {
  Operands use = operands(site, Gemm::kWgrad, TensorRole::kGradient, dy, TensorRole::kInput, x);
  GemmShape shape{.m = out, .n = in, .k = n, .transpose_a = true, .transpose_b = false};
  backend_.gemm(shape, use.alpha(), use.a.data, use.b.data, dw, accumulate);
}

template class LinearLayers<bf16>;
template class LinearLayers<float>;

}  // namespace gnomon
