// The whole model once more in FP64 and plain loops, sharing no code with the engine. It can round
// where the engine rounds (BF16 activations, FP8 operands), so that what remains between the two is
// FP32 summation order, or not round at all, and then it is smooth and finite differences can check
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "numerics/quantizer.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/model_config.h"

namespace gnomon::test {

using Vector = std::vector<double>;

// x to the nearest number with `mantissa_bits` behind the leading one, no exponent below
// `exponent_min`, at most `largest` in magnitude; ties to even.
double round_to_grid(double x, int mantissa_bits, int exponent_min, double largest);
double round_bf16(double x);
double round_to_format(Format format, double x);
// x[·, columns] as the tiles' own scales (no ScaleRule::kGiven) take it to the format, divided by
// them again.
Vector quantise_tiles(const Quantizer& quantizer, int log2_shift, const Vector& x, int columns);

class ReferenceModel {
 public:
  // Amax that the scale of (site, tensor) comes from in `delayed` scaling; -1 takes the tensor's
  // own.
  using HistoryAmax = std::function<double(const std::string& site, const std::string& tensor)>;

  // An operand quantised elsewhere, to be used in place of our own; nullptr means none. Gets the
  // tensor, how it is to be quantised, and our own scale where there is one for the whole tensor.
  using QuantisedOperand =
      std::function<const Vector*(const Vector& x, const Quantizer& quantizer, double scale)>;

  explicit ReferenceModel(const ModelConfig& model_config) : config(model_config) {}

  // Sum of the losses in nats; fills `gradients` with those of loss · gradient_scale.
  double forward_backward(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                          int tokens_per_sequence, double gradient_scale);
  double loss(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
              int tokens_per_sequence);

  ModelConfig config;
  std::map<std::string, Vector> weights;
  std::map<std::string, Vector> gradients;
  Vector logits;        // [n, vocabulary] of the last pass
  bool rounds = false;  // BF16 activations and the plan's FP8 operands
  PrecisionPlan plan;
  HistoryAmax history_amax = [](const std::string&, const std::string&) { return -1.0; };
  QuantisedOperand quantised_operand = [](const Vector&, const Quantizer&, double) {
    return nullptr;
  };

 private:
  struct Layer {
    Vector residual1, normed1, rstd1, q, k, v, probabilities, attended;
    Vector q_before, q_rstd, k_before, k_rstd;  // of the norms of heads
    Vector residual2, normed2, rstd2, gate, up, hidden;
  };
  double r(double x) const { return rounds ? round_bf16(x) : x; }
  Vector operand(const std::string& site, Gemm gemm, const std::string& tensor, const Vector& x,
                 int columns) const;
  Vector fprop(const std::string& site, const Vector& x, const std::string& weight, int in,
               int out) const;
  Vector dgrad(const std::string& site, const Vector& dy, const std::string& weight, int in,
               int out) const;
  void wgrad(const std::string& site, const Vector& dy, const Vector& x, const std::string& weight,
             int in, int out);
  Vector norm(const Vector& residual, const std::string& weight, Vector& rstd) const;
  void norm_backward(const Vector& residual, const std::string& weight, const Vector& rstd,
                     const Vector& dy, Vector& d_residual);
  // Rows of the width that the weight has.
  void norm_heads(Vector& x, const std::string& weight, Vector& before, Vector& rstd) const;
  void norm_heads_backward(Vector& dy, const std::string& weight, const Vector& before,
                           const Vector& rstd);
  void rotate(Vector& x, int heads, bool inverse) const;
  void attention(Layer& layer) const;
  void attention_backward(const Layer& layer, const Vector& d_o, Vector& dq, Vector& dk,
                          Vector& dv) const;
  void add_bias(Vector& y, const std::string& name) const;
  void bias_backward(const Vector& dy, const std::string& name);
  Vector forward_layer(int index, const Vector& residual);
  void backward_layer(int index, Vector& d_residual);
  double cross_entropy(const std::vector<int32_t>& targets, double scale, Vector& d_logits) const;
  double run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, double scale,
             bool backward);
  void round_all(Vector& x) const;

  int n_ = 0;
  int t_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace gnomon::test
