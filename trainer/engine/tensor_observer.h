// Looks on while the GEMMs of a pass run. LinearLayers calls it, when there is one, with what each
// GEMM reads and gives; it changes nothing.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/operand.h"
#include "numerics/quantizer.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/scaling.h"

namespace gnomon {

struct SiteGroup;  // linear.h

class TensorObserver {
 public:
  virtual ~TensorObserver() = default;

  // The operands shown from here on until the next call keep their content meanwhile: the same
  // place is the same tensor.
  virtual void begin_products() = 0;
  // The products that follow, until the next call, are of `count` rows of the pass from row `first`
  // on. Told where they are not of all: lm_head's may come in parts.
  virtual void begin_rows(int64_t /*first*/, int64_t /*count*/) {}
  // An operand of the site's GEMM, as it is before rounding: input [n,in], weight [out,in],
  // gradient [n,out]. Where neighbouring sites run as one GEMM in BF16 it is called for the first
  // of them, with the gradients side by side. `quantizer` says how the GEMM's copy is rounded, with
  // `given_scale` for ScaleRule::kGiven; nullptr: not at all.
  virtual void operand(int site, Gemm gemm, TensorRole role, std::span<const bf16> content,
                       const Quantizer* quantizer, float given_scale) = 0;
  // What fprop gave for the sites from `site` on, side by side: n rows.
  virtual void output(int site, std::span<const bf16> content, int64_t n) = 0;

  // What the sites of a group are about to read, as the model has it: no fault has changed it. For
  // who wants to run the products once more in another way.
  virtual void before_fprop(const SiteGroup& /*group*/, const GemmOperand<bf16>& /*x*/) {}
  // `dy` as LinearLayers::backward takes it.
  virtual void before_backward(const SiteGroup& /*group*/,
                               std::span<const GemmOperand<bf16>> /*dy*/,
                               std::span<const GemmOperand<bf16>> /*w*/,
                               const GemmOperand<bf16>& /*x*/, int64_t /*n*/) {}
};

}  // namespace gnomon
