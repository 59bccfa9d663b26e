// The optimizers: what the state of each keeps beside FP32 masters, and how one element is updated.
// The CPU's kernels, a device's and the analysis by site, which computes in FP64, are made of the
// same rule. To add an optimizer: a rule, an enumerator, a row of kOptimizers, a case of
// with_rule().
//
// A rule is made of an UpdateOf, for one step. g is the clipped gradient, m and v are the element's
// first and second moment; a rule without a second moment ignores v.
//   step(g, m, v)         Returns what is subtracted from the decayed weight, and updates m and v.
//   size(m, v)            Returns the square whose mean over a tensor gives its usual size.
//   slope(g, m, v, least) Returns the derivative of step() by g. An element smaller than `least`, a
//                         part of the tensor's usual size, counts as one of this size.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "kernels/moments.h"
#include "numerics/host_device.h"

namespace gnomon {

enum class OptimizerKind { kAdamw, kLion };  // in the order of kOptimizers

// One update of some elements. T is float in kernels and double in analyses.
template <class T>
struct UpdateOf {
  T learning_rate, beta1, beta2, eps, weight_decay;
  T bias_correction1, bias_correction2;  // 1 − βᵗ
  T gradient_scale;                      // clipping and accumulation, applied to g
  // Weight decay is for the first `decayed` elements of the call only.
  int64_t decayed = std::numeric_limits<int64_t>::max();
  // Where a moment is not stored as FP32 it is rounded by chance: by (seed, step, element), the
  // call's element 0 being `first_element` of all, a multiple of kMomentBlock.
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_element = 0;
  OptimizerKind optimizer = OptimizerKind::kAdamw;
};
using UpdateStep = UpdateOf<float>;

// a/b; in a device's FP32 within 2 units of the last place, and 0 for b above 2^126: the result is
// one term of an update.
template <class T>
GNOMON_HOST_DEVICE T about_quotient(T a, T b) {
#ifdef __CUDA_ARCH__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// Loshchilov & Hutter 2019 (arXiv 1711.05101), algorithm 2.
template <class T>
struct Adamw {
  static constexpr bool kHasSecondMoment = true;
  T beta1, beta2, eps, rate, second;

  explicit Adamw(const UpdateOf<T>& of)
      : beta1(of.beta1),
        beta2(of.beta2),
        eps(of.eps),
        rate(of.learning_rate / of.bias_correction1),
        second(1 / of.bias_correction2) {}

  GNOMON_HOST_DEVICE T step(T g, T& m, T& v) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    return about_quotient(rate * m, std::sqrt(v * second) + eps);
  }
  T slope(T g, T m, T v, T least) const {
    step(g, m, v);
    const T root = std::max(std::sqrt(v * second), least);
    if (root == 0) return 0;
    const T of_root = (1 - beta2) * g * second / root;
    return rate * ((1 - beta1) - m * of_root / (root + eps)) / (root + eps);
  }
  T size(T /*m*/, T v) const { return v * second; }
};

// Chen et al. 2023 (arXiv 2302.06675), algorithm 2.
template <class T>
struct Lion {
  static constexpr bool kHasSecondMoment = false;
  T beta1, beta2, rate;

  explicit Lion(const UpdateOf<T>& of) : beta1(of.beta1), beta2(of.beta2), rate(of.learning_rate) {}

  // Zero and NaN have no sign and are returned as they are.
  GNOMON_HOST_DEVICE T step(T g, T& m, T& /*v*/) const {
    const T mixed = beta1 * m + (1 - beta1) * g;
    m = beta2 * m + (1 - beta2) * g;
    return mixed > 0 ? rate : mixed < 0 ? -rate : mixed;
  }
  // A sign has no derivative. This is the one of rate · clip(mixed/least, −1, 1), whose sum over
  // many elements is that of their signs' expected changes.
  T slope(T g, T m, T /*v*/, T least) const {
    return std::abs(beta1 * m + (1 - beta1) * g) < least ? rate * (1 - beta1) / least : 0;
  }
  T size(T m, T /*v*/) const { return m * m; }
};

// What the engine, configurations and checkpoints know of an optimizer.
struct OptimizerRow {
  std::string_view name;
  // The names of its moments in a checkpoint, by Moment; the second may be null: it has none.
  std::array<const char*, 2> moments;
  double beta1, beta2;  // where a run's file says nothing
  // Keys of [optimizer] that have no effect on it.
  std::span<const std::string_view> unused_keys;

  bool has(Moment moment) const { return moments[static_cast<size_t>(moment)] != nullptr; }
};
inline constexpr std::array<std::string_view, 2> kLionUnusedKeys = {"eps", "second_moment"};
inline constexpr std::array kOptimizers = {
    OptimizerRow{"adamw", {"exp_avg", "exp_avg_sq"}, 0.9, 0.95, {}},
    OptimizerRow{"lion", {"exp_avg", nullptr}, 0.9, 0.99, kLionUnusedKeys},
};

constexpr const OptimizerRow& optimizer_row(OptimizerKind kind) {
  return kOptimizers[static_cast<size_t>(kind)];
}
inline constexpr auto kOptimizerNames = [] {
  std::array<std::string_view, kOptimizers.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kOptimizers[i].name;
  return names;
}();

// Calls `work` with the rule of such an update.
template <class T, class Work>
void with_rule(const UpdateOf<T>& of, const Work& work) {
  switch (of.optimizer) {
    case OptimizerKind::kAdamw:
      return work(Adamw<T>(of));
    case OptimizerKind::kLion:
      return work(Lion<T>(of));
  }
}

}  // namespace gnomon
