// A backend that passes everything on and remembers what was quantised, having checked each
// value with code of its own. The FP64 reference then uses these operands in place of its own: a
// value that lies at the border between two FP8 numbers would otherwise fall to one side here and
// to the other there, and one such step of an eighth of its size drowns what is to be compared.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "tests/engine/forwarding_backend.h"
#include "tests/engine/reference_model.h"

namespace gnomon::test {

struct QuantisedTensor {
  Format format;
  double scale;         // 0 where there is one for each tile
  Quantizer quantizer;  // where there is
  Vector source;
  Vector values;  // divided by the scales again
};

class RecordingBackend final : public ForwardingBackend<bf16> {
 public:
  using ForwardingBackend<bf16>::ForwardingBackend;

  const std::vector<QuantisedTensor>& quantised() const { return quantised_; }
  // Every product since the last clear(), in order.
  const std::vector<GemmShape>& products() const { return products_; }
  // How each of those that have scales was to add up.
  const std::vector<std::pair<GemmShape, Accumulation>>& scaled_products() const {
    return scaled_products_;
  }
  void clear() {
    quantised_.clear();
    products_.clear();
    scaled_products_.clear();
  }
  // The recorded tensor that was quantised so and whose source is within 5% of `x`, nullptr when
  // there is none. A scale of the whole tensor must be within 2% of `scale`.
  const QuantisedTensor* find(const Vector& x, const Quantizer& quantizer, double scale) const;

  void quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                unsigned wanted, CastCounts* counts) override;
  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, bf16* c) override {
    products_.push_back(shape);
    ForwardingBackend::gemm(shape, alpha, a, b, c);
  }
  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, float* c,
            bool accumulate) override {
    products_.push_back(shape);
    ForwardingBackend::gemm(shape, alpha, a, b, c, accumulate);
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a,
            std::span<const GemmOperand<bf16>* const> b, bf16* c) override {
    note(shape, accumulation, a);
    ForwardingBackend::gemm(shape, accumulation, a, b, c);
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a,
            const GemmOperand<bf16>& b, float* c, bool accumulate) override {
    note(shape, accumulation, a);
    ForwardingBackend::gemm(shape, accumulation, a, b, c, accumulate);
  }

 private:
  void note(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a) {
    products_.push_back(shape);
    if (a.rounding.keeps_scales) scaled_products_.emplace_back(shape, accumulation);
  }

  std::vector<QuantisedTensor> quantised_;
  std::vector<GemmShape> products_;
  std::vector<std::pair<GemmShape, Accumulation>> scaled_products_;
};

}  // namespace gnomon::test
