// What the FP8 GEMMs of one site cost: looks on while a model in BF16 computes and runs each site's
// products a second time as the plan wants them, faults of the numerics included. Sums are doubles.
//
// With g_t the gradient of the loss of all tokens to output t of the site, δ_t = y8_t − y16_t at
// the same input, and T tokens of the held-out batch,
//
//   φ = 1/T · Σ_t [ g_t·δ_t + ½ (g_t·δ_t)² ]                        (DECISION.md §4)
//
// the change of the mean loss to second order, the curvature being that of the empirical Fisher
// matrix (where δ is large, Engine::scores measures the loss instead: docs/attribution.md). With
// u(dW) the update that the optimizer makes of a gradient, from the moments at hand (rules in
// kernels/optimizers.h; weight decay, which no gradient changes, is left out),
//
//   ψ = ⟨∇L_heldout, u(dW8) − u(dW16)⟩ + Σ_t (dx8_t − dx16_t)·ẋ_t
//
// the change of the held-out loss that the next update makes, to first order in the update. The
// first term is wgrad's, at this site's weight. The second is dgrad's, at every weight that the
// error of dx reaches: with J the derivative of x by those weights these errors change their
// gradient by Jᵀ(dx8 − dx16), hence ψ by ⟨V, Jᵀ(dx8 − dx16)⟩ with V = ∇L_heldout ∘ u'(dW16), and
// JV = ẋ is how fast x moves when the weights do so along V: one more forward pass, from displaced
// weights, gives it for all sites at once.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "trainer/engine/linear.h"
#include "trainer/engine/tensor_observer.h"

namespace gnomon {

class SiteScorer final : public TensorObserver {
 public:
  // `fp8` is how the sites run in `step`, under the faults in view. All must outlive this.
  SiteScorer(Backend& backend, const FaultView& faults, ScalingState& scaling, const PassPlan& fp8);

  // An old copy of a weight that the model keeps because of a fault.
  void set_stale_weight(int site, std::span<const std::byte> content);

  // What the next passes of the model, which must be in BF16, are looked at for. At first nothing.
  // Forward and backward on held-out text: φ and SQNR. The gradient is that of the mean over
  // `tokens` tokens.
  void look_at_outputs(int64_t tokens);
  // Forward with weights displaced by `length`·V: inputs are kept for the next pass.
  void look_at_displaced_inputs(double length);
  // Forward and backward on a step's micro-batch.
  void look_at_gradients(bool accumulate);

  // ---- what was found, by site ----
  struct Found {
    double first_order = 0, fisher = 0;  // Σ g·δ / T, Σ (g·δ)² / T
    double signal = 0, noise = 0;        // Σ y16², Σ δ²
    double dgrad = 0;                    // Σ (dx8 − dx16)·ẋ
    double phi() const { return first_order + fisher / 2; }
    double sqnr_db() const;  // infinite where y8 = y16
  };
  const Found& found(int site) const { return found_[static_cast<size_t>(site)]; }
  // dW8 − dW16, where wgrad is in FP8, in the backend's memory; empty elsewhere.
  std::span<const float> weight_gradient_error(int site) const {
    const auto found = weight_gradient_errors_.find(site);
    return found == weight_gradient_errors_.end() ? std::span<const float>() : found->second.all();
  }

  void begin_products() override {}
  void begin_rows(int64_t first, int64_t) override { first_row_ = first; }
  void operand(int, Gemm, TensorRole, std::span<const bf16>, const Quantizer*, float) override {}
  void output(int, std::span<const bf16>, int64_t) override {}
  void before_fprop(const SiteGroup& group, const GemmOperand<bf16>& x) override;
  void before_backward(const SiteGroup& group, std::span<const GemmOperand<bf16>> dy,
                       std::span<const GemmOperand<bf16>> w, const GemmOperand<bf16>& x,
                       int64_t n) override;

 private:
  enum class Look { kNothing, kOutputs, kDisplacedInputs, kGradients };
  bool uses_fp8(const SiteGroup& group, Gemm gemm) const;
  bool uses_fp8(int site, Gemm gemm) const {
    return (*fp8_.sites)[static_cast<size_t>(site)].uses_fp8(gemm);
  }
  void compare_outputs(const SiteGroup& group, std::span<const GemmOperand<bf16>> dy,
                       std::span<const GemmOperand<bf16>> w, const GemmOperand<bf16>& x, int64_t n);
  void compare_gradients(int site, int64_t in, int64_t out, std::span<const bf16> dy,
                         const GemmOperand<bf16>& w, const GemmOperand<bf16>& x, int64_t n,
                         std::span<const bf16> displaced);

  Backend& backend_;
  LinearLayers<bf16> linears_;
  std::vector<SitePrecision> bf16_sites_;
  PassPlan fp8_, bf16_;
  Look look_ = Look::kNothing;
  double tokens_ = 1, length_ = 1;
  bool accumulate_ = false;
  int64_t first_row_ = 0;  // of the products at hand
  std::vector<Found> found_;
  std::map<int, Buffer<float>> weight_gradient_errors_;
  std::map<int, std::vector<bf16>> displaced_;  // inputs by the first site of their group
  // Scratch.
  Memory& memory_;
  OwnOperand<bf16> input_, gradient_;  // the model's tensors, for our own products
  std::array<OperandMemory<bf16>, SiteGroup::kMax> weight_memory_;
  std::array<GemmOperand<bf16>, SiteGroup::kMax> weights_;
  Buffer<bf16> low_, high_, own_gradient_;
  Buffer<float> unused_gradient_;
};

}  // namespace gnomon
