#include "trainer/engine/site_scores.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"

namespace gnomon {

double AdamUpdate::operator()(double gradient, double m, double v) const {
  const double mean = (beta1 * m + (1 - beta1) * gradient) / bias_correction1;
  const double square = (beta2 * v + (1 - beta2) * gradient * gradient) / bias_correction2;
  return -learning_rate * mean / (std::sqrt(square) + eps);
}

double AdamUpdate::slope(double gradient, double m, double v, double least_root) const {
  const double mean = (beta1 * m + (1 - beta1) * gradient) / bias_correction1;
  const double square = (beta2 * v + (1 - beta2) * gradient * gradient) / bias_correction2;
  const double root = std::max(std::sqrt(square), least_root);
  if (root == 0) return 0;
  const double of_mean = (1 - beta1) / bias_correction1;
  const double of_root = (1 - beta2) * gradient / bias_correction2 / root;
  return -learning_rate * (of_mean - mean * of_root / (root + eps)) / (root + eps);
}

SiteScorer::SiteScorer(Backend& backend, const FaultView& faults, ScalingState& scaling,
                       const PassPlan& fp8)
    : backend_(backend),
      linears_(backend, &faults, scaling),
      bf16_sites_(fp8.sites->size()),
      fp8_(fp8),
      bf16_{.sites = &bf16_sites_, .step = fp8.step},
      found_(fp8.sites->size()) {
  GNOMON_ASSERT(!fp8.record && fp8.observer == nullptr);
}

void SiteScorer::take_stale_weight(int site, std::span<const std::byte> content) {
  const auto elements = std::ssize(content) / static_cast<int64_t>(sizeof(bf16));
  std::span<bf16> kept = linears_.faulty_operands().take_stale_weight(site, elements);
  std::memcpy(kept.data(), content.data(), content.size());
}

void SiteScorer::look_at_outputs(int64_t tokens) {
  look_ = Look::kOutputs;
  tokens_ = static_cast<double>(tokens);
}

void SiteScorer::look_at_displaced_inputs(double length) {
  look_ = Look::kDisplacedInputs;
  length_ = length;
}

void SiteScorer::look_at_gradients(bool accumulate) {
  look_ = Look::kGradients;
  accumulate_ = accumulate;
}

double SiteScorer::Found::sqnr_db() const {
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal / noise);
}

GemmOperand<bf16>& SiteScorer::Copy::of(std::span<const bf16> content) {
  room.resize(std::max(room.size(), content.size()));
  operand.room = room.data();
  operand.renew(content);
  return operand;
}

bool SiteScorer::uses_fp8(const SiteGroup& group, Gemm gemm) const {
  for (int i = 0; i < group.count; ++i) {
    if (uses_fp8(group.first + i, gemm)) return true;
  }
  return false;
}

void SiteScorer::before_fprop(const SiteGroup& group, const GemmOperand<bf16>& x) {
  if (look_ != Look::kDisplacedInputs || !uses_fp8(group, Gemm::kDgrad)) return;
  displaced_[group.first].assign(x.data.begin(), x.data.end());
}

void SiteScorer::before_backward(const SiteGroup& group, std::span<const GemmOperand<bf16>> dy,
                                 std::span<const GemmOperand<bf16>> w, const GemmOperand<bf16>& x,
                                 int64_t n) {
  if (look_ == Look::kOutputs && uses_fp8(group, Gemm::kFprop)) {
    compare_outputs(group, dy, w, x, n);
  }
  if (look_ != Look::kGradients) return;
  const auto displaced = displaced_.find(group.first);
  int64_t column = 0;
  for (int i = 0; i < group.count; ++i) {
    const int site = group.first + i;
    const auto of_group = static_cast<size_t>(i);
    const int64_t out = group.out[of_group];
    std::span<const bf16> own = dy[dy.size() == 1 ? 0 : of_group].data;
    if (dy.size() == 1 && group.count > 1) {
      own_gradient_.resize(static_cast<size_t>(n * out));
      for (int64_t row = 0; row < n; ++row) {
        std::copy_n(own.data() + row * group.total_out() + column, out,
                    own_gradient_.data() + row * out);
      }
      own = own_gradient_;
    }
    column += out;
    if (!uses_fp8(site, Gemm::kDgrad) && !uses_fp8(site, Gemm::kWgrad)) continue;
    compare_gradients(site, group.in, out, own, w[of_group], x, n,
                      displaced == displaced_.end() ? std::span<const bf16>()
                                                    : std::span<const bf16>(displaced->second));
  }
}

void SiteScorer::compare_outputs(const SiteGroup& group, std::span<const GemmOperand<bf16>> dy,
                                 std::span<const GemmOperand<bf16>> w, const GemmOperand<bf16>& x,
                                 int64_t n) {
  const int64_t total = group.total_out();
  for (auto [pass, y] : {std::pair{&fp8_, &low_}, std::pair{&bf16_, &high_}}) {
    y->resize(static_cast<size_t>(n * total));
    std::array<GemmOperand<bf16>, SiteGroup::kMax> own;
    for (size_t i = 0; i < w.size(); ++i) own[i] = weights_[i].of(w[i].data);
    linears_.begin(*pass);
    linears_.fprop(group, input_.of(x.data), std::span(own).first(w.size()), n, y->data());
  }
  int64_t column = 0;
  for (int i = 0; i < group.count; ++i) {
    const auto of_group = static_cast<size_t>(i);
    const int64_t out = group.out[of_group];
    const bool together = dy.size() == 1;
    const bf16* gradient = dy[together ? 0 : of_group].data.data() + (together ? column : 0);
    Found& found = found_[static_cast<size_t>(group.first + i)];
    for (int64_t row = 0; row < n && uses_fp8(group.first + i, Gemm::kFprop); ++row) {
      const bf16* g = gradient + row * (together ? total : out);
      const bf16* low = low_.data() + row * total + column;
      const bf16* high = high_.data() + row * total + column;
      double dot = 0, signal = 0, noise = 0;
      for (int64_t c = 0; c < out; ++c) {
        const double y16 = static_cast<double>(to_float(high[c]));
        const double error = static_cast<double>(to_float(low[c])) - y16;
        dot += static_cast<double>(to_float(g[c])) * error;
        signal += y16 * y16;
        noise += error * error;
      }
      // The model's gradient is that of the mean: g / T.
      found.first_order += dot;
      found.fisher += dot * dot * tokens_;
      found.signal += signal;
      found.noise += noise;
    }
    column += out;
  }
}

void SiteScorer::compare_gradients(int site, int64_t in, int64_t out, std::span<const bf16> dy,
                                   const GemmOperand<bf16>& w, const GemmOperand<bf16>& x,
                                   int64_t n, std::span<const bf16> displaced) {
  Found& found = found_[static_cast<size_t>(site)];
  const bool wgrad = uses_fp8(site, Gemm::kWgrad);
  std::vector<float>& dw = wgrad ? found.weight_gradient_error : unused_gradient_;
  dw.resize(std::max(dw.size(), static_cast<size_t>(in * out)));
  low_.resize(static_cast<size_t>(n * in));
  const SiteGroup alone{.first = site, .count = 1, .in = in, .out = {out}};
  GemmOperand<bf16>& input = input_.of(x.data);
  linears_.begin(fp8_);
  linears_.faulty_operands().input(site, fp8_.step, in, input);
  float* const gradient = dw.data();
  linears_.backward(alone, {&gradient_.of(dy), 1}, {&weights_[0].of(w.data), 1}, input, n,
                    low_.data(), {&gradient, 1}, accumulate_, nullptr);
  if (wgrad) {
    backend_.gemm({.m = out, .n = in, .k = n, .transpose_a = true}, -1.0f, dy.data(), x.data.data(),
                  gradient, true);
  }
  if (!uses_fp8(site, Gemm::kDgrad)) return;
  GNOMON_ASSERT(displaced.size() == low_.size());
  high_.resize(low_.size());
  backend_.gemm({.m = n, .n = in, .k = out}, 1.0f, dy.data(), w.data.data(), high_.data());
  double sum = 0;
  for (size_t i = 0; i < low_.size(); ++i) {
    sum += (static_cast<double>(to_float(low_[i])) - static_cast<double>(to_float(high_[i]))) *
           (static_cast<double>(to_float(displaced[i])) - static_cast<double>(to_float(x.data[i])));
  }
  found.dgrad += sum / length_;
}

}  // namespace gnomon
