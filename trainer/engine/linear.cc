#include "trainer/engine/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/errors.h"
#include "numerics/scales.h"

namespace gnomon {

template <class E>
LinearLayers<E>::LinearLayers(BackendOf<E>& backend, const FaultView* faults, ScalingState& scaling)
    : backend_(backend),
      scaling_(scaling),
      faults_(faults == nullptr ? no_faults_ : *faults),
      faulty_(faults_, backend.memory()),
      casts_(backend.memory()),
      observed_(backend.memory()),
      given_(backend.memory()) {
  const int64_t tensors = int64_t{1} * scaling.sites() * kTensorRoles;
  casts_.at_least(tensors);
  observed_.at_least(tensors);
  begin_counting();
  forget_observed();
}

template <class E>
void LinearLayers<E>::begin(const PassPlan& pass) {
  pass_ = pass;
  if constexpr (std::is_same_v<E, bf16>) {
    if (!backend_.memory().on_host()) bring_given_scales();
  }
}

template <class E>
std::optional<Gemm> LinearLayers<E>::first_alike(int site, const Quantizer& wanted, int margin,
                                                 TensorRole role) const {
  for (Gemm gemm : kGemms) {
    if (!reads(gemm, role) || !uses_fp8(site, gemm)) continue;
    const GemmPrecision& its = precision(site, gemm);
    if (its.margin == margin && quantizer_for(its, role, gemm) == wanted) return gemm;
  }
  return std::nullopt;
}

template <class E>
size_t LinearLayers<E>::shared_slot(int site, Gemm gemm, TensorRole role) const {
  const int margin = precision(site, gemm).margin;
  const Quantizer wanted = quantizer_for(precision(site, gemm), role, gemm);
  size_t slot = given_slot(site, first_alike(site, wanted, margin, role).value_or(gemm), role);
  while (role == TensorRole::kInput && site > 0 &&
         scaling_.history(site - 1, role) == scaling_.history(site, role)) {
    --site;
    const std::optional<Gemm> alike = first_alike(site, wanted, margin, role);
    if (!alike) break;
    slot = given_slot(site, *alike, role);
  }
  return slot;
}

template <class E>
void LinearLayers<E>::bring_given_scales() {
  std::vector<float> now(given_slot(scaling_.sites(), Gemm::kFprop, TensorRole::kInput), 0.0f);
  bool any = false;
  for (int site = 0; site < scaling_.sites(); ++site) {
    for (Gemm gemm : kGemms) {
      for (TensorRole role : kAllTensorRoles) {
        const AmaxHistory& history = scaling_.history(site, role);
        if (!reads(gemm, role) || !uses_fp8(site, gemm) || history.empty()) continue;
        const Quantizer quantizer = quantizer_for(precision(site, gemm), role, gemm);
        if (quantizer.rule != ScaleRule::kGiven) continue;
        now[given_slot(site, gemm, role)] =
            delayed_scale(history.max(), quantizer.format, precision(site, gemm).margin, 1.0f);
        any = true;
      }
    }
  }
  if (!any || now == given_on_host_) return;
  write_from_host(backend_.memory(), std::span<const float>(now), given_.at_least(std::ssize(now)));
  given_on_host_ = std::move(now);
}

template <class E>
void LinearLayers<E>::need_amax(GemmOperand<E>& operand) {
  if constexpr (std::is_same_v<E, bf16>) {
    if (operand.amax_known) return;
    backend_.amax(operand.data, operand.scalars + kAmax);
    operand.amax_known = true;
  }
}

// As choose_scale() does.
template <class E>
bool LinearLayers<E>::reads_amax(int site, Gemm gemm, TensorRole role) const {
  if (!reads(gemm, role) || !uses_fp8(site, gemm)) return false;
  if (gemm != Gemm::kFprop && !pass_.trains) return false;
  const Quantizer quantizer = quantizer_for(precision(site, gemm), role, gemm);
  if (quantizer.tile != TileShape{} || quantizer.rule == ScaleRule::kNone) return false;
  return pass_.record || quantizer.rule != ScaleRule::kGiven ||
         scaling_.history(site, role).empty();
}

template <class E>
float* LinearLayers<E>::renew(int first_site, int count, TensorRole role, GemmOperand<E>& operand,
                              std::span<const E> content) {
  operand.renew(content);
  for (int site = first_site; site < first_site + count; ++site) {
    for (Gemm gemm : kGemms) {
      operand.amax_known = operand.amax_known || reads_amax(site, gemm, role);
    }
  }
  return operand.amax_known ? operand.scalars + kAmax : nullptr;
}

template <class E>
float* LinearLayers<E>::observed(int site, TensorRole role) {
  any_observed_ = true;
  return observed_.data() + tensor_slot(site, role);
}

template <class E>
void LinearLayers<E>::report_observed() {
  // Recorded work that is repeated does not come by here: it may have observed whenever any did.
  if (!any_observed_) return;
  const HostView<float> slots(backend_.memory(), observed_.all());
  for (size_t i = 0; i < slots.get().size(); ++i) {
    if (slots[i] < 0) continue;
    scaling_.observe(static_cast<int>(i / kTensorRoles), static_cast<TensorRole>(i % kTensorRoles),
                     slots[i]);
  }
  forget_observed();
}

template <class E>
std::vector<CastCounts> LinearLayers<E>::casts() {
  const HostView<CastCounts> view(backend_.memory(), casts_.all());
  return {view.begin(), view.end()};
}

template <class E>
void LinearLayers<E>::begin_counting() {
  backend_.zero(std::as_writable_bytes(casts_.all()));
  faulty_.forget_copies();
}

template <class E>
void LinearLayers<E>::forget_observed() {
  fill_on_host(backend_.memory(), observed_.all(),
               [](std::span<float> slots) { std::ranges::fill(slots, -1.0f); });
}

template <class E>
bool LinearLayers<E>::give_scale(int site, Gemm gemm, TensorRole role, Rounding& rounding) const {
  if (rounding.quantizer.rule != ScaleRule::kGiven) return false;
  rounding.margin = precision(site, gemm).margin;
  const AmaxHistory& history = scaling_.history(site, role);
  if (history.empty()) return false;
  rounding.given = delayed_scale(history.max(), rounding.quantizer.format, rounding.margin, 1.0f);
  if (given_.data() != nullptr) rounding.given_at = given_.data() + shared_slot(site, gemm, role);
  return true;
}

// Where the scale of the whole tensor comes from.
template <class E>
void LinearLayers<E>::choose_scale(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand,
                                   Rounding& rounding) {
  const ScaleRule rule = rounding.quantizer.rule;
  if (rule == ScaleRule::kNone) return;
  if (!give_scale(site, gemm, role, rounding) || pass_.record) need_amax(operand);
  if (rule == ScaleRule::kGiven && pass_.record) {
    backend_.raise(operand.scalars + kAmax, observed(site, role));
  }
}

template <class E>
Rounding LinearLayers<E>::rounding_but_scale(int site, Gemm gemm, TensorRole role) const {
  const GemmPrecision& wanted = precision(site, gemm);
  const TensorRole left = gemm == Gemm::kFprop ? TensorRole::kInput : TensorRole::kGradient;
  const TensorRole right = gemm == Gemm::kWgrad ? TensorRole::kInput : TensorRole::kWeight;
  Rounding found;
  found.quantises = true;
  found.quantizer = quantizer_for(wanted, role, gemm);
  found.keeps_scales =
      backend_.keeps_scales(accumulation(site, gemm), quantizer_for(wanted, left, gemm),
                            quantizer_for(wanted, right, gemm), gemm == Gemm::kWgrad);
  found.log2_shift = faults_.scale_shift(site, role, pass_.step);
  return found;
}

template <class E>
std::optional<CopyAlong<E>> LinearLayers<E>::copy_along(int site, GemmOperand<E>& operand) {
  if constexpr (std::is_same_v<E, bf16>) {
    // An outlier's column is made in a tensor of its own, an observer gets what is there.
    if (!uses_fp8(site, Gemm::kFprop) || pass_.observer != nullptr ||
        faults_.outlier(site, pass_.step)) {
      return std::nullopt;
    }
    Rounding rounding = rounding_but_scale(site, Gemm::kFprop, TensorRole::kInput);
    if (!rounding.whole_tensor() || !give_scale(site, Gemm::kFprop, TensorRole::kInput, rounding)) {
      return std::nullopt;
    }
    return CopyAlong<E>{&operand, rounding,
                        orientations_wanted(site, Gemm::kFprop, TensorRole::kInput),
                        casts_.data() + tensor_slot(site, TensorRole::kInput)};
  }
  return std::nullopt;
}

template <class E>
Rounding LinearLayers<E>::rounding(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand) {
  Rounding found;
  if (uses_fp8(site, gemm)) {
    if constexpr (std::is_same_v<E, bf16>) {
      found = rounding_but_scale(site, gemm, role);
      if (found.whole_tensor()) choose_scale(site, gemm, role, operand, found);
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
    float scale = 1;
    if (rounding.quantises && rounding.whole_tensor()) {
      float amax = 0;  // read only where it is needed: it may lie on a device
      if (operand.amax_known) {
        amax = HostView<float>(backend_.memory(), std::span(operand.scalars + kAmax, 1))[0];
      }
      scale = tensor_scale(rounding, amax);
      quantizer.rule = ScaleRule::kGiven;
    }
    pass_.observer->operand(site, gemm, role, operand.data,
                            rounding.quantises ? &quantizer : nullptr, scale);
  }
}

// Which way round the products of this pass read a copy that is rounded as this GEMM wants it.
template <class E>
unsigned LinearLayers<E>::orientations_wanted(int site, Gemm gemm, TensorRole role) const {
  const auto of = [role](Gemm reader) -> unsigned {
    if (reader == Gemm::kFprop) return kAsStored;
    return reader == Gemm::kDgrad && role == TensorRole::kGradient ? kAsStored : kTransposed;
  };
  unsigned wanted = of(gemm);
  for (Gemm other : kGemms) {
    if (other == gemm || !reads(other, role) || !uses_fp8(site, other)) continue;
    if (other != Gemm::kFprop && !pass_.trains) continue;
    const bool alike = quantizer_for(precision(site, other), role, other) ==
                       quantizer_for(precision(site, gemm), role, gemm);
    if (alike) wanted |= of(other);
  }
  return wanted;
}

template <class E>
const GemmOperand<E>& LinearLayers<E>::prepare(int site, Gemm gemm, TensorRole role,
                                               GemmOperand<E>& operand, int64_t columns,
                                               const Rounding& rounding) {
  if (!rounding.quantises) return operand;
  const unsigned wanted = orientations_wanted(site, gemm, role);
  if (operand.rounding != rounding || (operand.orientations & wanted) != wanted) {
    const int64_t rows = std::ssize(operand.data) / columns;
    backend_.quantize(operand, rows, columns, rounding, wanted,
                      casts_.data() + tensor_slot(site, role));
  }
  return operand;
}

namespace {

// Only E4M3 and E5M2 have a kernel that can add up in the tensor core's way.
bool tensor_core_formats(const GemmPrecision& precision, Gemm gemm) {
  return is_fp8(precision.forward_format) &&
         (gemm == Gemm::kFprop || is_fp8(precision.gradient_format));
}

}  // namespace

template <class E>
Accumulation LinearLayers<E>::accumulation(int site, Gemm gemm) const {
  const GemmPrecision& wanted = precision(site, gemm);
  if (pass_.fakequant) return {.by_codes = false};
  Accumulation found{.hopper = wanted.accumulate == Accumulate::kHopper,
                     .promote_every = wanted.promotion(gemm)};
  if (tensor_core_formats(wanted, gemm)) {
    if (auto wrong = faults_.accumulation(site, gemm, pass_.step)) found = *wrong;
  }
  found.lost = faults_.dropped(site, gemm, pass_.step).value_or(TermRange{});
  return found;
}

template <class E>
void LinearLayers<E>::multiply(int site, Gemm gemm, const GemmShape& shape, const GemmOperand<E>& a,
                               std::span<const GemmOperand<E>* const> b, E* c) {
  if (uses_fp8(site, gemm)) {
    backend_.gemm(shape, accumulation(site, gemm), a, b, c);
  } else {
    backend_.gemm(shape, 1.0f, a.data.data(), b[0]->data.data(), c);
  }
}

template <class E>
void LinearLayers<E>::multiply(int site, Gemm gemm, const GemmShape& shape, const GemmOperand<E>& a,
                               const GemmOperand<E>& b, float* c, bool accumulate) {
  if (uses_fp8(site, gemm)) {
    backend_.gemm(shape, accumulation(site, gemm), a, b, c, accumulate);
  } else {
    backend_.gemm(shape, 1.0f, a.data.data(), b.data.data(), c, accumulate);
  }
}

template <class E>
void LinearLayers<E>::stick_bits(const SiteGroup& group, int64_t n, E* y) const {
  for (int i = 0; i < group.count; ++i) {
    const Fault* stuck = faults_.stuck_output(group.first + i, pass_.step);
    if (stuck != nullptr) {
      // One column, from its first element to its last.
      const auto reach = static_cast<size_t>((n - 1) * group.total_out() + 1);
      edit_on_host(backend_.memory(), std::span(y + stuck->element, reach), [&](std::span<E> all) {
        for (size_t at = 0; at < all.size(); at += static_cast<size_t>(group.total_out())) {
          // An output's bits are those of BF16, which are the upper half of FP32's.
          uint32_t bits = std::bit_cast<uint32_t>(to_float(all[at]));
          const uint32_t bit = uint32_t{1} << (stuck->bit + 16);
          bits = stuck->value == 1 ? bits | bit : bits & ~bit;
          all[at] = from_float<E>(std::bit_cast<float>(bits));
        }
      });
    }
    y += group.out[static_cast<size_t>(i)];
  }
}

namespace {

// True when a product can read the second operand as the rows after the first's.
template <class E>
bool adjacent(const GemmOperand<E>& first, const GemmOperand<E>& second, bool copies) {
  if (!copies) return second.data.data() == first.data.data() + first.data.size();
  return second.room.begin == first.room.begin &&
         second.room.before == first.room.before + std::ssize(first.data);
}

}  // namespace

template <class E>
void LinearLayers<E>::fprop(const SiteGroup& group, GemmOperand<E>& own_x,
                            std::span<GemmOperand<E>> w, int64_t n, E* y) {
  GNOMON_ASSERT(w.size() == static_cast<size_t>(group.count) && w.size() <= SiteGroup::kMax);
  if (pass_.observer != nullptr) pass_.observer->begin_products();
  if constexpr (std::is_same_v<E, bf16>) {
    if (pass_.observer != nullptr) pass_.observer->before_fprop(group, own_x);
  }
  std::array<Rounding, SiteGroup::kMax> inputs;
  Operands weights;
  bool together = true;
  // Only sites that are alone in their group have outliers.
  GemmOperand<E>& x = faulty_.input(group.first, pass_.step, group.in, own_x);
  for (size_t i = 0; i < w.size(); ++i) {
    int site = group.first + static_cast<int>(i);
    inputs[i] = rounding(site, Gemm::kFprop, TensorRole::kInput, x);
    weights[i] = &prepare(site, Gemm::kFprop, TensorRole::kWeight,
                          weight_of(site, Gemm::kFprop, group.in, w[i]), group.in);
    together = together && inputs[i] == inputs[0] &&
               (w.size() == 1 || (!inputs[i].keeps_scales &&
                                  accumulation(site, Gemm::kFprop).lost == TermRange{})) &&
               (i == 0 || adjacent(*weights[i - 1], *weights[i], inputs[i].quantises));
  }
  const auto all_inputs = std::span(inputs).first(w.size());
  const auto all_weights = std::span(weights).first(w.size());
  if (together) {
    prepare(group.first, Gemm::kFprop, TensorRole::kInput, x, group.in, inputs[0]);
    const GemmShape shape{.m = n, .n = group.total_out(), .k = group.in, .transpose_b = true};
    multiply(group.first, Gemm::kFprop, shape, x, all_weights, y);
  } else {
    fprop_apart(group, x, all_inputs, all_weights, n, y);
  }
  stick_bits(group, n, y);
  if constexpr (std::is_same_v<E, bf16>) {
    if (pass_.observer == nullptr) return;
    pass_.observer->output(group.first, {y, static_cast<size_t>(n * group.total_out())}, n);
  }
}

template <class E>
void LinearLayers<E>::fprop_apart(const SiteGroup& group, GemmOperand<E>& x,
                                  std::span<const Rounding> inputs,
                                  std::span<const GemmOperand<E>* const> weights, int64_t n, E* y) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int site = group.first + static_cast<int>(i);
    GemmShape shape{.m = n,
                    .n = group.out[i],
                    .k = group.in,
                    .transpose_b = true,
                    .stride_c = group.total_out()};
    multiply(site, Gemm::kFprop, shape,
             prepare(site, Gemm::kFprop, TensorRole::kInput, x, group.in, inputs[i]), *weights[i],
             y);
    y += group.out[i];
  }
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
    prepare(site, Gemm::kDgrad, TensorRole::kGradient, dy[i], out);
    const GemmOperand<E>& weight = prepare(site, Gemm::kDgrad, TensorRole::kWeight,
                                           weight_of(site, Gemm::kDgrad, group.in, w[i]), group.in);
    GemmShape dgrad{.m = n, .n = group.in, .k = out};
    if (one) {
      multiply(site, Gemm::kDgrad, dgrad, dy[i], weight, dx);
    } else {
      multiply(site, Gemm::kDgrad, dgrad, dy[i], weight, sums, i > 0);
    }
    prepare(site, Gemm::kWgrad, TensorRole::kGradient, dy[i], out);
    prepare(site, Gemm::kWgrad, TensorRole::kInput, x, group.in);
    GemmShape wgrad{.m = out, .n = group.in, .k = n, .transpose_a = true};
    const std::span<float> dw_of{dw[i], static_cast<size_t>(out * group.in)};
    if (outlier && accumulate)
      scale_column(backend_.memory(), dw_of, group.in, outlier->channel, outlier->log2_factor);
    multiply(site, Gemm::kWgrad, wgrad, dy[i], x, dw[i], accumulate);
    if (outlier) {
      scale_column(backend_.memory(), dw_of, group.in, outlier->channel, -outlier->log2_factor);
    }
  }
  if (outlier) {
    scale_column(backend_.memory(), std::span<E>(dx, static_cast<size_t>(n * group.in)), group.in,
                 outlier->channel, outlier->log2_factor);
  }
  if (!one) {
    size_t size = static_cast<size_t>(n * group.in);
    backend_.round_sum({sums, size}, {dx, size});
  }
}

template class LinearLayers<bf16>;
template class LinearLayers<float>;

}  // namespace gnomon
