// Looks on while the GEMMs of a pass run. LinearLayers calls it, when there is one, with what each
// GEMM reads and gives; it changes nothing.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/quantizer.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/scaling.h"

namespace gnomon {

class TensorObserver {
 public:
  virtual ~TensorObserver() = default;

  // The operands shown from here on until the next call keep their content meanwhile: the same
  // place is the same tensor.
  virtual void begin_products() = 0;
  // An operand of the site's GEMM, as it is before rounding: input [n,in], weight [out,in],
  // gradient [n,out]. Where neighbouring sites run as one GEMM in BF16 it is called for the first
  // of them, with the gradients side by side. `quantizer` says how the GEMM's copy is rounded, with
  // `given_scale` for ScaleRule::kGiven; nullptr: not at all.
  virtual void operand(int site, Gemm gemm, TensorRole role, std::span<const bf16> content,
                       const Quantizer* quantizer, float given_scale) = 0;
  // What fprop gave for the sites from `site` on, side by side: n rows.
  virtual void output(int site, std::span<const bf16> content, int64_t n) = 0;
};

}  // namespace gnomon
