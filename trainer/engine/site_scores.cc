#include "trainer/engine/site_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"

namespace gnomon {

SiteScorer::SiteScorer(Backend& backend, const FaultView& faults, ScalingState& scaling,
                       const PassPlan& fp8)
    : backend_(backend),
      linears_(backend, &faults, scaling),
      bf16_sites_(fp8.sites->size()),
      fp8_(fp8),
      bf16_{.sites = &bf16_sites_, .step = fp8.step},
      found_(fp8.sites->size()),
      memory_(backend.memory()),
      input_(memory_),
      gradient_(memory_),
      weight_memory_{OperandMemory<bf16>(memory_), OperandMemory<bf16>(memory_),
                     OperandMemory<bf16>(memory_)},
      low_(memory_),
      high_(memory_),
      own_gradient_(memory_),
      unused_gradient_(memory_) {
  GNOMON_ASSERT(!fp8.record && fp8.observer == nullptr);
}

void SiteScorer::set_stale_weight(int site, std::span<const std::byte> content) {
  const auto elements = std::ssize(content) / static_cast<int64_t>(sizeof(bf16));
  std::span<bf16> kept = linears_.faulty_operands().allocate_stale_weight(site, elements);
  memory_.copy(content, std::as_writable_bytes(kept).data());
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

bool SiteScorer::uses_fp8(const SiteGroup& group, Gemm gemm) const {
  for (int i = 0; i < group.count; ++i) {
    if (uses_fp8(group.first + i, gemm)) return true;
  }
  return false;
}

void SiteScorer::before_fprop(const SiteGroup& group, const GemmOperand<bf16>& x) {
  if (look_ != Look::kDisplacedInputs || !uses_fp8(group, Gemm::kDgrad)) return;
  const HostView<bf16> input(memory_, x.data);
  std::vector<bf16>& kept = displaced_[group.first];
  if (first_row_ == 0) kept.clear();
  kept.insert(kept.end(), input.begin(), input.end());
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
      const HostView<bf16> all(memory_, own);
      const std::span<bf16> alone = own_gradient_.at_least(n * out);
      fill_on_host(memory_, alone, [&](std::span<bf16> to) {
        for (int64_t row = 0; row < n; ++row) {
          std::copy_n(all.begin() + row * group.total_out() + column, out, to.data() + row * out);
        }
      });
      own = alone;
    }
    column += out;
    if (!uses_fp8(site, Gemm::kDgrad) && !uses_fp8(site, Gemm::kWgrad)) continue;
    std::span<const bf16> displaced_here;
    if (displaced != displaced_.end()) {
      displaced_here = std::span<const bf16>(displaced->second)
                           .subspan(static_cast<size_t>(first_row_ * group.in),
                                    static_cast<size_t>(n * group.in));
    }
    compare_gradients(site, group.in, out, own, w[of_group], x, n, displaced_here);
  }
}

void SiteScorer::compare_outputs(const SiteGroup& group, std::span<const GemmOperand<bf16>> dy,
                                 std::span<const GemmOperand<bf16>> w, const GemmOperand<bf16>& x,
                                 int64_t n) {
  const int64_t total = group.total_out();
  const std::span<bf16> in_fp8 = low_.at_least(n * total), in_bf16 = high_.at_least(n * total);
  for (auto [pass, y] : {std::pair{&fp8_, in_fp8}, std::pair{&bf16_, in_bf16}}) {
    for (size_t i = 0; i < w.size(); ++i) weight_memory_[i].serve(weights_[i], w[i].data);
    linears_.begin(*pass);
    linears_.fprop(group, input_.of(x.data), std::span(weights_).first(w.size()), n, y.data());
  }
  const HostView<bf16> all_low(memory_, in_fp8), all_high(memory_, in_bf16);
  int64_t column = 0;
  for (int i = 0; i < group.count; ++i) {
    const auto of_group = static_cast<size_t>(i);
    const int64_t out = group.out[of_group];
    const bool together = dy.size() == 1;
    const HostView<bf16> gradients(memory_, dy[together ? 0 : of_group].data);
    const bf16* gradient = gradients.begin() + (together ? column : 0);
    Found& found = found_[static_cast<size_t>(group.first) + of_group];
    for (int64_t row = 0; row < n && uses_fp8(group.first + i, Gemm::kFprop); ++row) {
      const bf16* g = gradient + row * (together ? total : out);
      const bf16* low = all_low.begin() + row * total + column;
      const bf16* high = all_high.begin() + row * total + column;
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
  Buffer<float>& dw =
      wgrad ? weight_gradient_errors_.try_emplace(site, memory_).first->second : unused_gradient_;
  float* const gradient = dw.at_least(in * out).data();
  const std::span<bf16> low = low_.at_least(n * in);
  const SiteGroup alone{.first = site, .count = 1, .in = in, .out = {out}};
  GemmOperand<bf16>& input = input_.of(x.data);
  linears_.begin(fp8_);
  linears_.faulty_operands().input(site, fp8_.step, in, input);
  weight_memory_[0].serve(weights_[0], w.data);
  linears_.backward(alone, {&gradient_.of(dy), 1}, {weights_.data(), 1}, input, n, low.data(),
                    {&gradient, 1}, accumulate_ || first_row_ > 0, nullptr);
  if (wgrad) {
    backend_.gemm({.m = out, .n = in, .k = n, .transpose_a = true}, -1.0f, dy.data(), x.data.data(),
                  gradient, true);
  }
  if (!uses_fp8(site, Gemm::kDgrad)) return;
  GNOMON_ASSERT(displaced.size() == low.size());
  const std::span<bf16> high = high_.at_least(n * in);
  backend_.gemm({.m = n, .n = in, .k = out}, 1.0f, dy.data(), w.data.data(), high.data());
  const HostView<bf16> dx8(memory_, low), dx16(memory_, high), input_now(memory_, x.data);
  double sum = 0;
  for (size_t i = 0; i < displaced.size(); ++i) {
    sum +=
        (static_cast<double>(to_float(dx8[i])) - static_cast<double>(to_float(dx16[i]))) *
        (static_cast<double>(to_float(displaced[i])) - static_cast<double>(to_float(input_now[i])));
  }
  found.dgrad += sum / length_;
}

}  // namespace gnomon
