// The model's GEMMs as the precision plan wants them: each operand as it is or quantised as its
// recipe says, once for all GEMMs that can share it. The values of narrow formats are exact in
// BF16, and so are they divided by scales that are powers of two: one BF16 GEMM serves all of them.
// FP32 scales on tiles and Hopper's accumulation take Backend::scaled_gemm. A model of FP32
// elements quantises nothing.
//
// Sites that read the same input run as one GEMM where their operands allow it, which the plan and
// the scaling state decide: fprop unless their inputs are quantised differently, dgrad and wgrad
// where no site quantises there. A sum over sites is rounded once either way.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/formats.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/fault_view.h"
#include "trainer/engine/faulty_operands.h"
#include "trainer/engine/gemm_operand.h"
#include "trainer/engine/scaling.h"
#include "trainer/engine/tensor_observer.h"

namespace gnomon {

// How one pass over the model runs.
struct PassPlan {
  const std::vector<SitePrecision>* sites = nullptr;  // by site index
  int64_t step = 0;                                   // for faults
  bool record = false;                                // whether amaxes count for the histories
  TensorObserver* observer = nullptr;                 // looks on; of a BF16 model only
  // The values of the plan's formats, but no FP8 kernel: products of them are made as those of BF16
  // are, with FP32 sums, and of weights as they are now. A fault of a kernel is not felt.
  bool fakequant = false;
};

// Sites that read the same input, neighbours in the numbering of sites: one, or q k v, or gate up.
struct SiteGroup {
  static constexpr int kMax = 3;
  int first = 0;
  int count = 1;
  int64_t in = 0;
  std::array<int64_t, kMax> out = {};  // widths of the outputs
  bool contiguous = true;              // the weights, and so their gradients, lie without gaps

  int64_t total_out() const { return out[0] + out[1] + out[2]; }
};

template <class E>
class LinearLayers {
 public:
  // All must outlive this object; `faults` may be nullptr.
  LinearLayers(BackendOf<E>& backend, const FaultView* faults, ScalingState& scaling);

  void begin(const PassPlan& pass) { pass_ = pass; }

  // y[n,total_out] = x[n,in]·wᵀ; w[i] is [out[i],in], one for each site of the group.
  void fprop(const SiteGroup& group, GemmOperand<E>& x, std::span<GemmOperand<E>> w, int64_t n,
             E* y);
  // How backward() wants the outputs' gradients: side by side in one matrix [n,total_out], or as a
  // matrix [n,out[i]] for each site.
  bool side_by_side(const SiteGroup& group) const;
  // dx[n,in] = Σ dy[i]·w[i], dw[i] = dy[i]ᵀ·x (+ dw[i] when `accumulate`), where the dw[i] lie as
  // the weights do. dy has one operand, or one for each site, as side_by_side says; `sums` is
  // scratch for n × in numbers.
  void backward(const SiteGroup& group, std::span<GemmOperand<E>> dy, std::span<GemmOperand<E>> w,
                GemmOperand<E>& x, int64_t n, E* dx, std::span<float* const> dw, bool accumulate,
                float* sums);

  FaultyOperands<E>& faulty_operands() { return faulty_; }

 private:
  // An operand as the GEMM reads it, and what undoes the scale of the whole tensor; for a product
  // with scales, the operand itself.
  struct Ready {
    const E* data = nullptr;
    float inverse_scale = 1;
    const GemmOperand<E>* scaled = nullptr;
    bool quantised = false;
  };

  const GemmPrecision& precision(int site, Gemm gemm) const {
    return (*pass_.sites)[static_cast<size_t>(site)][gemm];
  }
  bool uses_fp8(int site, Gemm gemm) const { return precision(site, gemm).fp8; }
  bool uses_fp8_kernel(int site, Gemm gemm) const {
    return uses_fp8(site, gemm) && !pass_.fakequant;
  }
  GemmOperand<E>& weight_of(int site, Gemm gemm, int64_t columns, GemmOperand<E>& own) {
    return faulty_.weight(site, pass_.step, uses_fp8_kernel(site, gemm), columns, own);
  }
  // May look at the tensor (its amax) and note it for the scaling state.
  Rounding rounding(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand);
  // `columns` are those of the matrix as it is stored.
  Ready prepare(GemmOperand<E>& operand, int64_t columns, const Rounding& rounding);
  Ready prepare(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand, int64_t columns) {
    return prepare(operand, columns, rounding(site, gemm, role, operand));
  }
  // Both for BF16 elements only. Not by a constraint: clang 14 instantiates constrained members all
  // the same.
  void quantize(GemmOperand<E>& operand, int64_t columns, const Rounding& rounding);
  float scale_for(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand,
                  const Quantizer& quantizer);
  // One site's product, C BF16 or (with `accumulate` or not) FP32.
  void multiply(int site, Gemm gemm, const GemmShape& shape, const Ready& a, const Ready& b, E* c);
  void multiply(int site, Gemm gemm, const GemmShape& shape, const Ready& a, const Ready& b,
                float* c, bool accumulate);
  Accumulation accumulation(int site, Gemm gemm) const;
  bool needs_scaled_product(int site, Gemm gemm) const;
  // The left operand as a kernel that loses terms reads it.
  Ready as_the_kernel_reads(int site, Gemm gemm, const GemmShape& shape, const Ready& a);
  void stick_bits(const SiteGroup& group, int64_t n, E* y) const;
  void show(int site, Gemm gemm, TensorRole role, const GemmOperand<E>& operand,
            const Rounding& rounding) const;
  void fprop_together(const SiteGroup& group, Ready x, std::span<const Ready> w, int64_t n, E* y);
  void fprop_apart(const SiteGroup& group, GemmOperand<E>& x, std::span<const Rounding> inputs,
                   std::span<const Ready> weights, int64_t n, E* y);

  BackendOf<E>& backend_;
  ScalingState& scaling_;
  const FaultView no_faults_;
  const FaultView& faults_;
  FaultyOperands<E> faulty_;
  PassPlan pass_;
  std::vector<float> column_alphas_;
  std::vector<E> kept_terms_;
};

}  // namespace gnomon
