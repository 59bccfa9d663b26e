// A backend that passes everything on and remembers what was quantised, having checked each
// value with code of its own. The FP64 reference then uses these operands in place of its own: a
// value that lies at the border between two FP8 numbers would otherwise fall to one side here and
// to the other there, and one such step of an eighth of its size drowns what is to be compared.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/engine/reference_model.h"

namespace gnomon::test {

struct QuantisedTensor {
  Format format;
  double scale;         // 0 where there is one for each tile
  Quantizer quantizer;  // where there is
  Vector source;
  Vector values;  // divided by the scales again
};

class RecordingBackend final : public Backend {
 public:
  explicit RecordingBackend(int threads) : backend_(make_cpu_backend(threads)) {}

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

  QuantizeCounts quantize(std::span<const bf16> x, Format format, float scale,
                          std::span<bf16> y) override;
  void quantize_tiles(const Quantizer& quantizer, const TileQuantiseOptions& options,
                      std::span<const bf16> x, int64_t rows, int64_t columns, std::span<bf16> y,
                      std::span<float> scales) override;
  void scaled_gemm(const GemmShape& shape, const Accumulation& accumulation, const ScaledOperand& a,
                   const ScaledOperand& b, bf16* c) override {
    products_.push_back(shape);
    scaled_products_.emplace_back(shape, accumulation);
    backend_->scaled_gemm(shape, accumulation, a, b, c);
  }
  void scaled_gemm(const GemmShape& shape, const Accumulation& accumulation, const ScaledOperand& a,
                   const ScaledOperand& b, float* c, bool accumulate) override {
    products_.push_back(shape);
    scaled_products_.emplace_back(shape, accumulation);
    backend_->scaled_gemm(shape, accumulation, a, b, c, accumulate);
  }

  std::string name() const override { return backend_->name(); }
  std::string device() const override { return backend_->device(); }
  std::string libraries() const override { return backend_->libraries(); }
  int threads() const override { return backend_->threads(); }
  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, bf16* c) override {
    products_.push_back(shape);
    backend_->gemm(shape, alpha, a, b, c);
  }
  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, float* c,
            bool accumulate) override {
    products_.push_back(shape);
    backend_->gemm(shape, alpha, a, b, c, accumulate);
  }
  void gemm_columns(const GemmShape& shape, std::span<const float> alphas, const bf16* a,
                    const bf16* b, bf16* c) override {
    products_.push_back(shape);
    backend_->gemm_columns(shape, alphas, a, b, c);
  }
  float amax(std::span<const bf16> x) override { return backend_->amax(x); }
  void round_sum(std::span<const float> x, std::span<bf16> y) override {
    backend_->round_sum(x, y);
  }
  void add_rms_norm(std::span<const bf16> residual, std::span<const bf16> x,
                    std::span<const bf16> w, float eps, std::span<bf16> sum, std::span<bf16> y,
                    std::span<float> rstd) override {
    backend_->add_rms_norm(residual, x, w, eps, sum, y, rstd);
  }
  void rms_norm_backward(std::span<const bf16> residual, std::span<const bf16> w,
                         std::span<const float> rstd, std::span<const bf16> dy,
                         std::span<bf16> d_residual, std::span<float> dw) override {
    backend_->rms_norm_backward(residual, w, rstd, dy, d_residual, dw);
  }
  void add_bias(bf16* y, int64_t n, std::span<const bf16> bias, int64_t stride) override {
    backend_->add_bias(y, n, bias, stride);
  }
  void bias_backward(const bf16* dy, int64_t n, std::span<float> db, int64_t stride) override {
    backend_->bias_backward(dy, n, db, stride);
  }
  void rope(bf16* x, int64_t n, int64_t tokens, int heads, int head_dim, const Rotary& rotary,
            bool inverse, int64_t stride) override {
    backend_->rope(x, n, tokens, heads, head_dim, rotary, inverse, stride);
  }
  void swiglu(const bf16* gate, const bf16* up, int64_t n, int64_t width, int64_t stride,
              bf16* y) override {
    backend_->swiglu(gate, up, n, width, stride, y);
  }
  void swiglu_backward(const bf16* gate, const bf16* up, const bf16* dy, int64_t n, int64_t width,
                       int64_t stride, bf16* dgate, bf16* dup, int64_t stride_d) override {
    backend_->swiglu_backward(gate, up, dy, n, width, stride, dgate, dup, stride_d);
  }
  int64_t attention_saved_bytes(const AttentionShape& shape) const override {
    return backend_->attention_saved_bytes(shape);
  }
  int64_t attention_scratch_bytes(const AttentionShape& shape) const override {
    return backend_->attention_scratch_bytes(shape);
  }
  void attention(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
                 std::byte* saved, std::byte* scratch) override {
    backend_->attention(shape, q, k, v, o, saved, scratch);
  }
  void attention_backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                          const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                          const std::byte* saved, std::byte* scratch) override {
    backend_->attention_backward(shape, q, k, v, o, d_o, dq, dk, dv, saved, scratch);
  }
  void embed(std::span<const int32_t> tokens, std::span<const bf16> table, int64_t width,
             std::span<bf16> y) override {
    backend_->embed(tokens, table, width, y);
  }
  void embed_backward(std::span<const int32_t> tokens, std::span<const bf16> dy, int64_t width,
                      std::span<float> dtable) override {
    backend_->embed_backward(tokens, dy, width, dtable);
  }
  void cross_entropy(std::span<bf16> logits, std::span<const int32_t> targets, int64_t vocabulary,
                     float scale, bool with_gradient, std::span<float> losses) override {
    backend_->cross_entropy(logits, targets, vocabulary, scale, with_gradient, losses);
  }
  double sum_of_squares(std::span<const float> x) override { return backend_->sum_of_squares(x); }
  void adamw(const AdamwStep& step, std::span<const float> gradient, MomentSpan m, MomentSpan v,
             std::span<float> master, WeightSpan weight) override {
    backend_->adamw(step, gradient, m, v, master, weight);
  }
  void zero(std::span<float> x) override { backend_->zero(x); }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<QuantisedTensor> quantised_;
  std::vector<GemmShape> products_;
  std::vector<std::pair<GemmShape, Accumulation>> scaled_products_;
};

}  // namespace gnomon::test
