// The model's GEMMs as the precision plan wants them: each operand as it is or rounded as its
// recipe says, once for all GEMMs that can share it. A model of FP32 elements rounds nothing.
//
// Sites that read the same input run as one GEMM where their operands allow it, which the plan and
// the scaling state decide: fprop unless their inputs are rounded differently, dgrad and wgrad
// where no site rounds there. A sum over sites is rounded once either way.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "numerics/formats.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/fault_view.h"
#include "trainer/engine/faulty_operands.h"
#include "trainer/engine/scaling.h"
#include "trainer/engine/tensor_observer.h"

namespace gnomon {

// How one pass over the model runs.
struct PassPlan {
  const std::vector<SitePrecision>* sites = nullptr;  // by site index
  int64_t step = 0;                                   // for faults
  bool record = false;                                // whether amaxes count for the histories
  bool trains = false;                                // a backward pass follows
  TensorObserver* observer = nullptr;                 // looks on; of a BF16 model only
  // The values of the plan's formats, but no FP8 kernel: products of them are made as those of BF16
  // are, with FP32 sums, and of weights as they are now. A fault of a kernel is not felt.
  bool fakequant = false;
  // Key for BackendBase::repeat(); 0: none. Passes with one key have the same sites, scaling
  // histories, tokens in number and `accumulate`, follow passes of the same key alike, and have no
  // fault or observer.
  uint64_t repeat_key = 0;
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

  void begin(const PassPlan& pass);

  // The operand is about to get `content`, which `count` sites from `first_site` on read in this
  // role. Returns where its amax belongs, which then counts as known; nullptr: nobody needs it.
  float* renew(int first_site, int count, TensorRole role, GemmOperand<E>& operand,
               std::span<const E> content);

  // The copy that fprop() of a site, alone in its group, will want of the content that `operand` is
  // about to get: nothing where its scale follows from that content, or somebody else makes it.
  std::optional<CopyAlong<E>> copy_along(int site, GemmOperand<E>& operand);

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

  // Tells the scaling state what amaxes the passes since the last call met that were to be
  // recorded.
  void report_observed();

  // What casts did to the tensors that products have read since begin_counting(): by site and
  // TensorRole, all GEMMs added up, each copy where it was first read.
  std::vector<CastCounts> casts();
  // From now on; copies of weights that faults keep are made anew.
  void begin_counting();

  FaultyOperands<E>& faulty_operands() { return faulty_; }

 private:
  using Operands = std::array<const GemmOperand<E>*, SiteGroup::kMax>;

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
  // But for the scale of a whole tensor; and that, where the history gives it.
  Rounding rounding_but_scale(int site, Gemm gemm, TensorRole role) const;
  bool give_scale(int site, Gemm gemm, TensorRole role, Rounding& rounding) const;
  // May look at the tensor (its amax) and note it for the scaling state.
  Rounding rounding(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand);
  // The operand ready for the GEMM; `columns` are those of the matrix as it is stored.
  const GemmOperand<E>& prepare(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand,
                                int64_t columns, const Rounding& rounding);
  const GemmOperand<E>& prepare(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand,
                                int64_t columns) {
    return prepare(site, gemm, role, operand, columns, rounding(site, gemm, role, operand));
  }
  // For BF16 elements only. Not by a constraint: clang 14 instantiates constrained members all the
  // same.
  void choose_scale(int site, Gemm gemm, TensorRole role, GemmOperand<E>& operand,
                    Rounding& rounding);
  void need_amax(GemmOperand<E>& operand);
  bool reads_amax(int site, Gemm gemm, TensorRole role) const;
  float* observed(int site, TensorRole role);
  void forget_observed();
  unsigned orientations_wanted(int site, Gemm gemm, TensorRole role) const;
  // One site's product, C BF16 or (with `accumulate` or not) FP32.
  void multiply(int site, Gemm gemm, const GemmShape& shape, const GemmOperand<E>& a,
                const GemmOperand<E>& b, E* c) {
    const GemmOperand<E>* right = &b;
    multiply(site, gemm, shape, a, std::span(&right, 1), c);
  }
  void multiply(int site, Gemm gemm, const GemmShape& shape, const GemmOperand<E>& a,
                std::span<const GemmOperand<E>* const> b, E* c);
  void multiply(int site, Gemm gemm, const GemmShape& shape, const GemmOperand<E>& a,
                const GemmOperand<E>& b, float* c, bool accumulate);
  Accumulation accumulation(int site, Gemm gemm) const;
  void stick_bits(const SiteGroup& group, int64_t n, E* y) const;
  void show(int site, Gemm gemm, TensorRole role, const GemmOperand<E>& operand,
            const Rounding& rounding) const;
  void fprop_apart(const SiteGroup& group, GemmOperand<E>& x, std::span<const Rounding> inputs,
                   std::span<const GemmOperand<E>* const> weights, int64_t n, E* y);

  BackendOf<E>& backend_;
  ScalingState& scaling_;
  const FaultView no_faults_;
  const FaultView& faults_;
  FaultyOperands<E> faulty_;
  PassPlan pass_;
  void bring_given_scales();
  // Products that share a copy share the address of its scale: that of the first GEMM of the site
  // that rounds the tensor so; and of an input, of the first of neighbouring sites with one
  // history.
  size_t shared_slot(int site, Gemm gemm, TensorRole role) const;
  std::optional<Gemm> first_alike(int site, const Quantizer& wanted, int margin,
                                  TensorRole role) const;
  static size_t tensor_slot(int site, TensorRole role) {
    return static_cast<size_t>(site) * kTensorRoles + static_cast<size_t>(role);
  }
  static size_t given_slot(int site, Gemm gemm, TensorRole role) {
    return (static_cast<size_t>(site) * kGemms.size() + static_cast<size_t>(gemm)) * kTensorRoles +
           static_cast<size_t>(role);
  }

  Buffer<CastCounts> casts_;  // by tensor_slot()
  Buffer<float> observed_;    // likewise: the largest amax met, below 0: none
  bool any_observed_ = false;
  // Scales of `delayed` by given_slot(), where the backend's memory is not the host's: there, and
  // what was brought there last. They stand at an address so that recorded work can be repeated.
  Buffer<float> given_;
  std::vector<float> given_on_host_;
};

}  // namespace gnomon
