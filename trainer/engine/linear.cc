#include "trainer/engine/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/errors.h"
#include "kernels/recipe.h"

namespace gnomon {

template <class E>
LinearLayers<E>::LinearLayers(BackendOf<E>& backend, const FaultView* faults, ScalingState& scaling)
    : backend_(backend),
      scaling_(scaling),
      faults_(faults == nullptr ? no_faults_ : *faults),
      faulty_(faults_) {}

template <class E>
float LinearLayers<E>::scale_for(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand,
                                 const Quantizer& quantizer) {
  if (quantizer.rule == ScaleRule::kNone) return 1.0f;
  const bool delayed = quantizer.rule == ScaleRule::kGiven;
  const AmaxHistory& history = scaling_.history(site, role);
  bool from_history = delayed && !history.empty();
  if constexpr (std::is_same_v<E, bf16>) {
    if (!operand.amax_known && (!from_history || pass_.record)) {
      operand.amax = backend_.amax(operand.data);
      operand.amax_known = true;
    }
  }
  if (!delayed) return tile_scale(quantizer.rule, quantizer.format, operand.amax);
  if (pass_.record) scaling_.observe(site, role, operand.amax);
  return delayed_scale(from_history ? history.max() : operand.amax, quantizer.format,
                       precision(site, gemm).margin, 1.0f);
}

// Whether a BF16 product cannot say what the plan wants exactly.
template <class E>
bool LinearLayers<E>::needs_scaled_product(int site, Gemm gemm) const {
  if (accumulation(site, gemm).hopper) return true;
  const TensorRole left = gemm == Gemm::kFprop ? TensorRole::kInput : TensorRole::kGradient;
  const TensorRole right = gemm == Gemm::kWgrad ? TensorRole::kInput : TensorRole::kWeight;
  for (TensorRole role : {left, right}) {
    const Quantizer quantizer = quantizer_for(precision(site, gemm), role, gemm);
    if (quantizer.tile != TileShape{} && !quantizer.exact_in_bf16()) return true;
  }
  return false;
}

template <class E>
Rounding LinearLayers<E>::rounding(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand) {
  Rounding found;
  if (uses_fp8(site, gemm)) {
    if constexpr (std::is_same_v<E, bf16>) {
      const GemmPrecision& wanted = precision(site, gemm);
      found = {true, quantizer_for(wanted, role, gemm), 1.0f, needs_scaled_product(site, gemm)};
      if (found.whole_tensor()) found.scale = scale_for(site, gemm, role, operand, found.quantizer);
      found.scale = std::ldexp(found.scale, faults_.scale_shift(site, role, pass_.step));
    } else {
      GNOMON_ASSERT(!"an FP8 plan for a model of FP32 elements");
    }
  }
  if (pass_.observer != nullptr) show(site, gemm, role, operand, found);
  return found;
}

template <class E>
void LinearLayers<E>::show(int site, Gemm gemm, TensorRole role, const GemmOperand<E>& operand,
                           const Rounding& rounding) const {
  if constexpr (std::is_same_v<E, bf16>) {
    Quantizer quantizer = rounding.quantizer;
    if (rounding.whole_tensor()) quantizer.rule = ScaleRule::kGiven;
    pass_.observer->operand(site, gemm, role, operand.data,
                            rounding.quantises ? &quantizer : nullptr, rounding.scale);
  }
}

template <class E>
void LinearLayers<E>::quantize(GemmOperand<E>& operand, int64_t columns, const Rounding& rounding) {
  if constexpr (std::is_same_v<E, bf16>) {
    std::span<bf16> room{operand.room, operand.data.size()};
    if (rounding.whole_tensor()) {
      backend_.quantize(operand.data, rounding.quantizer.format, rounding.scale, room);
      return;
    }
    const int64_t rows = std::ssize(operand.data) / columns;
    if (rounding.scaled) {
      const int64_t tiles = tile_grid(rounding.quantizer, rows, columns).count();
      operand.scales.resize(static_cast<size_t>(tiles));
    }
    backend_.quantize_tiles(
        rounding.quantizer,
        {.log2_shift = std::ilogb(rounding.scale), .dequantise = !rounding.scaled}, operand.data,
        rows, columns, room, rounding.scaled ? std::span(operand.scales) : std::span<float>());
  }
}

template <class E>
typename LinearLayers<E>::Ready LinearLayers<E>::prepare(GemmOperand<E>& operand, int64_t columns,
                                                         const Rounding& rounding) {
  if (!rounding.quantises) return {operand.data.data(), 1.0f};
  if constexpr (std::is_same_v<E, bf16>) {
    if (operand.rounding != rounding) {
      quantize(operand, columns, rounding);
      operand.rounding = rounding;
    }
  }
  if (rounding.scaled) return {operand.room, 1.0f, &operand, true};
  return {operand.room, rounding.whole_tensor() ? 1.0f / rounding.scale : 1.0f, nullptr, true};
}

namespace {

// Only E4M3 and E5M2 have a kernel that can add up in the tensor core's way.
bool tensor_core_formats(const GemmPrecision& precision, Gemm gemm) {
  auto has_kernel = [](const std::string& name) { return name == "e4m3" || name == "e5m2"; };
  return has_kernel(precision.forward_format) &&
         (gemm == Gemm::kFprop || has_kernel(precision.gradient_format));
}

}  // namespace

template <class E>
Accumulation LinearLayers<E>::accumulation(int site, Gemm gemm) const {
  const GemmPrecision& wanted = precision(site, gemm);
  if (pass_.fakequant) return {};
  if (tensor_core_formats(wanted, gemm)) {
    if (auto wrong = faults_.accumulation(site, gemm, pass_.step)) return *wrong;
  }
  return {.hopper = wanted.accumulate == Accumulate::kHopper,
          .promote_every = wanted.promotion(gemm)};
}

template <class E>
typename LinearLayers<E>::Ready LinearLayers<E>::as_the_kernel_reads(int site, Gemm gemm,
                                                                     const GemmShape& shape,
                                                                     const Ready& a) {
  if (!a.quantised || pass_.fakequant) return a;
  const std::optional<TermRange> lost = faults_.dropped(site, gemm, pass_.step);
  if (!lost) return a;
  GNOMON_ASSERT(shape.stride_a == 0);
  // Zeros add nothing to a sum, nor to its scales, which are those of the whole tensor.
  kept_terms_.assign(a.data, a.data + shape.m * shape.k);
  const int64_t term_stride = shape.transpose_a ? shape.m : 1;
  const int64_t row_stride = shape.transpose_a ? 1 : shape.k;
  const int64_t end = std::min(lost->first + lost->count, shape.k);
  for (int64_t row = 0; row < shape.m; ++row) {
    for (int64_t term = lost->first; term < end; ++term) {
      kept_terms_[static_cast<size_t>(row * row_stride + term * term_stride)] = E{};
    }
  }
  Ready read = a;
  read.data = kept_terms_.data();
  return read;
}

namespace {

// `values` are the operand's copy, or what a kernel reads in its place.
ScaledOperand with_scales(const bf16* values, const GemmOperand<bf16>& operand) {
  const Rounding& rounding = operand.rounding;
  return {values, rounding.quantizer,
          rounding.whole_tensor() ? &rounding.scale : operand.scales.data()};
}

}  // namespace

template <class E>
void LinearLayers<E>::multiply(int site, Gemm gemm, const GemmShape& shape, const Ready& left,
                               const Ready& b, E* c) {
  const Ready a = as_the_kernel_reads(site, gemm, shape, left);
  if constexpr (std::is_same_v<E, bf16>) {
    if (a.scaled != nullptr) {
      backend_.scaled_gemm(shape, accumulation(site, gemm), with_scales(a.data, *a.scaled),
                           with_scales(b.data, *b.scaled), c);
      return;
    }
  }
  backend_.gemm(shape, a.inverse_scale * b.inverse_scale, a.data, b.data, c);
}

template <class E>
void LinearLayers<E>::multiply(int site, Gemm gemm, const GemmShape& shape, const Ready& left,
                               const Ready& b, float* c, bool accumulate) {
  const Ready a = as_the_kernel_reads(site, gemm, shape, left);
  if constexpr (std::is_same_v<E, bf16>) {
    if (a.scaled != nullptr) {
      backend_.scaled_gemm(shape, accumulation(site, gemm), with_scales(a.data, *a.scaled),
                           with_scales(b.data, *b.scaled), c, accumulate);
      return;
    }
  }
  backend_.gemm(shape, a.inverse_scale * b.inverse_scale, a.data, b.data, c, accumulate);
}

template <class E>
void LinearLayers<E>::stick_bits(const SiteGroup& group, int64_t n, E* y) const {
  for (int i = 0; i < group.count; ++i) {
    const Fault* stuck = faults_.stuck_output(group.first + i, pass_.step);
    if (stuck != nullptr) {
      E* at = y + stuck->element;
      for (int64_t row = 0; row < n; ++row, at += group.total_out()) {
        // An output's bits are those of BF16, which are the upper half of FP32's.
        uint32_t bits = std::bit_cast<uint32_t>(to_float(*at));
        const uint32_t bit = uint32_t{1} << (stuck->bit + 16);
        bits = stuck->value == 1 ? bits | bit : bits & ~bit;
        *at = from_float<E>(std::bit_cast<float>(bits));
      }
    }
    y += group.out[static_cast<size_t>(i)];
  }
}

template <class E>
void LinearLayers<E>::fprop(const SiteGroup& group, GemmOperand<E>& own_x,
                            std::span<GemmOperand<E>> w, int64_t n, E* y) {
  GNOMON_ASSERT(w.size() == static_cast<size_t>(group.count) && w.size() <= SiteGroup::kMax);
  if (pass_.observer != nullptr) pass_.observer->begin_products();
  if constexpr (std::is_same_v<E, bf16>) {
    if (pass_.observer != nullptr) pass_.observer->before_fprop(group, own_x);
  }
  std::array<Rounding, SiteGroup::kMax> inputs;
  std::array<Ready, SiteGroup::kMax> weights;
  bool together = true;
  // Only sites that are alone in their group have outliers.
  GemmOperand<E>& x = faulty_.input(group.first, pass_.step, group.in, own_x);
  for (size_t i = 0; i < w.size(); ++i) {
    int site = group.first + static_cast<int>(i);
    inputs[i] = rounding(site, Gemm::kFprop, TensorRole::kInput, x);
    weights[i] = prepare(site, Gemm::kFprop, TensorRole::kWeight,
                         weight_of(site, Gemm::kFprop, group.in, w[i]), group.in);
    together = together && inputs[i] == inputs[0] && (w.size() == 1 || !inputs[i].scaled) &&
               (i == 0 || weights[i].data == weights[i - 1].data + w[i - 1].data.size()) &&
               (w.size() == 1 || !faults_.dropped(site, Gemm::kFprop, pass_.step));
  }
  if (together) {
    fprop_together(group, prepare(x, group.in, inputs[0]), std::span(weights).first(w.size()), n,
                   y);
  } else {
    fprop_apart(group, x, std::span(inputs).first(w.size()), weights, n, y);
  }
  stick_bits(group, n, y);
  if constexpr (std::is_same_v<E, bf16>) {
    if (pass_.observer == nullptr) return;
    pass_.observer->output(group.first, {y, static_cast<size_t>(n * group.total_out())}, n);
  }
}

template <class E>
void LinearLayers<E>::fprop_apart(const SiteGroup& group, GemmOperand<E>& x,
                                  std::span<const Rounding> inputs, std::span<const Ready> weights,
                                  int64_t n, E* y) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    Ready input = prepare(x, group.in, inputs[i]);
    GemmShape shape{.m = n,
                    .n = group.out[i],
                    .k = group.in,
                    .transpose_b = true,
                    .stride_c = group.total_out()};
    multiply(group.first + static_cast<int>(i), Gemm::kFprop, shape, input, weights[i], y);
    y += group.out[i];
  }
}

template <class E>
void LinearLayers<E>::fprop_together(const SiteGroup& group, Ready x, std::span<const Ready> w,
                                     int64_t n, E* y) {
  GemmShape shape{.m = n, .n = group.total_out(), .k = group.in, .transpose_b = true};
  bool same_scale = std::ranges::all_of(
      w, [&](const Ready& weight) { return weight.inverse_scale == w[0].inverse_scale; });
  if (same_scale) {
    multiply(group.first, Gemm::kFprop, shape, x, w[0], y);
    return;
  }
  column_alphas_.clear();
  for (size_t i = 0; i < w.size(); ++i) {
    column_alphas_.insert(column_alphas_.end(), static_cast<size_t>(group.out[i]),
                          x.inverse_scale * w[i].inverse_scale);
  }
  backend_.gemm_columns(shape, column_alphas_, x.data, w[0].data, y);
}

template <class E>
bool LinearLayers<E>::side_by_side(const SiteGroup& group) const {
  if (group.count == 1) return true;
  bool quantises = false;
  for (int site = group.first; site < group.first + group.count; ++site) {
    quantises = quantises || uses_fp8(site, Gemm::kDgrad) || uses_fp8(site, Gemm::kWgrad);
  }
  return group.contiguous && !quantises;
}

template <class E>
void LinearLayers<E>::backward(const SiteGroup& group, std::span<GemmOperand<E>> dy,
                               std::span<GemmOperand<E>> w, GemmOperand<E>& own_x, int64_t n, E* dx,
                               std::span<float* const> dw, bool accumulate, float* sums) {
  if (pass_.observer != nullptr) pass_.observer->begin_products();
  if constexpr (std::is_same_v<E, bf16>) {
    if (pass_.observer != nullptr) pass_.observer->before_backward(group, dy, w, own_x, n);
  }
  GemmOperand<E>& x = faulty_.kept_input(group.first, pass_.step, own_x);
  const std::optional<OutlierChannel> outlier = faults_.outlier(group.first, pass_.step);
  const bool one = dy.size() == 1;
  for (size_t i = 0; i < dy.size(); ++i) {
    int site = group.first + static_cast<int>(i);
    int64_t out = one ? group.total_out() : group.out[i];
    Ready gradient = prepare(site, Gemm::kDgrad, TensorRole::kGradient, dy[i], out);
    Ready weight = prepare(site, Gemm::kDgrad, TensorRole::kWeight,
                           weight_of(site, Gemm::kDgrad, group.in, w[i]), group.in);
    GemmShape dgrad{.m = n, .n = group.in, .k = out};
    if (one) {
      multiply(site, Gemm::kDgrad, dgrad, gradient, weight, dx);
    } else {
      multiply(site, Gemm::kDgrad, dgrad, gradient, weight, sums, i > 0);
    }
    gradient = prepare(site, Gemm::kWgrad, TensorRole::kGradient, dy[i], out);
    Ready input = prepare(site, Gemm::kWgrad, TensorRole::kInput, x, group.in);
    GemmShape wgrad{.m = out, .n = group.in, .k = n, .transpose_a = true};
    const std::span<float> dw_of{dw[i], static_cast<size_t>(out * group.in)};
    if (outlier && accumulate)
      scale_column(dw_of, group.in, outlier->channel, outlier->log2_factor);
    multiply(site, Gemm::kWgrad, wgrad, gradient, input, dw[i], accumulate);
    if (outlier) scale_column(dw_of, group.in, outlier->channel, -outlier->log2_factor);
  }
  if (outlier) {
    scale_column(std::span<E>(dx, static_cast<size_t>(n * group.in)), group.in, outlier->channel,
                 outlier->log2_factor);
  }
  if (!one) {
    size_t size = static_cast<size_t>(n * group.in);
    backend_.round_sum({sums, size}, {dx, size});
  }
}

template class LinearLayers<bf16>;
template class LinearLayers<float>;

}  // namespace gnomon
