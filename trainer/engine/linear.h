// The model's GEMMs as the precision plan wants them: each operand as it is or quantised to FP8
// with a scale per tensor, once for all GEMMs that can share it. FP8 values are exact in BF16, so
// one BF16 GEMM serves both. A model of FP32 elements quantises nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/formats.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/faults.h"
#include "trainer/engine/scaling.h"

namespace gnomon {

// One tensor as a GEMM operand, with room for its quantised copy. The copy is remembered by format
// and scale.
template <class E>
struct GemmOperand {
  std::span<const E> data;
  E* room = nullptr;  // for data.size() elements
  bool amax_known = false;
  float amax = 0;
  bool quantised = false;
  Format format = Format::kBf16;
  float scale = 1;

  // The tensor has new content.
  void renew(std::span<const E> content) {
    data = content;
    amax_known = quantised = false;
  }
};

// How one pass over the model runs.
struct PassPlan {
  const std::vector<SitePrecision>* sites = nullptr;  // by site index
  int64_t step = 0;                                   // for faults
  bool record = false;                                // whether amaxes count for the histories
};

template <class E>
class LinearLayers {
 public:
  // All must outlive this object. Faults of the kind scale_shift act here. Throws ConfigError for a
  // fault whose site or tensor does not exist.
  LinearLayers(BackendOf<E>& backend, const std::vector<std::string>& sites,
               const std::vector<Fault>& faults, ScalingState& scaling);

  void begin(const PassPlan& pass) { pass_ = pass; }

  // y[n,out] = x[n,in]·wᵀ, w[out,in].
  void fprop(int site, GemmOperand<E>& x, GemmOperand<E>& w, int64_t n, int64_t in, int64_t out,
             E* y);
  // dx[n,in] = dy[n,out]·w
  void dgrad(int site, GemmOperand<E>& dy, GemmOperand<E>& w, int64_t n, int64_t in, int64_t out,
             E* dx);
  // The same in FP32, for inputs that several sites share; adds to dx when `accumulate`.
  void dgrad(int site, GemmOperand<E>& dy, GemmOperand<E>& w, int64_t n, int64_t in, int64_t out,
             float* dx, bool accumulate);
  // dw[out,in] = dyᵀ·x (+ dw when `accumulate`)
  void wgrad(int site, GemmOperand<E>& dy, GemmOperand<E>& x, int64_t n, int64_t in, int64_t out,
             float* dw, bool accumulate);

  // Whether the fault frozen_amax holds this history at `step`.
  bool frozen(int site, TensorRole role, int64_t step) const;

 private:
  struct SiteFault {
    FaultKind kind;
    int site;
    TensorRole role;
    Fault fault;
  };
  struct Ready {
    const E* data;
    float inverse_scale;
  };
  struct Operands {
    Ready a, b;
    float alpha() const { return a.inverse_scale * b.inverse_scale; }
  };
  Ready quantise(int site, TensorRole role,
                 GemmOperand<E>& operand) requires std::is_same_v<E, bf16>;
  Operands operands(int site, Gemm gemm, TensorRole role_a, GemmOperand<E>& a, TensorRole role_b,
                    GemmOperand<E>& b);
  float scale_for(int site, TensorRole role, GemmOperand<E>& operand,
                  Format format) requires std::is_same_v<E, bf16>;
  int shift(int site, TensorRole role) const;

  BackendOf<E>& backend_;
  ScalingState& scaling_;
  std::vector<SiteFault> faults_;
  PassPlan pass_;
};

}  // namespace gnomon
