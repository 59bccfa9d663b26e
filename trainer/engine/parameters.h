// Where every parameter lies: one flat numbering of elements shared by working weights, masters,
// moments and gradients. Matrices come first (they get weight decay), then biases and norms; q, k,
// v of a layer are neighbours, and so are gate and up. Each parameter starts at a multiple of 32
// elements (64 bytes in BF16).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/engine/model_config.h"

namespace gnomon {

struct Parameter {
  std::string name;  // Hugging Face's
  std::vector<int64_t> shape;
  int64_t offset = 0;  // elements
  int64_t size = 0;    // elements
};

// Indices into ParameterLayout::all(); -1 where the model has no such parameter.
struct LayerParameters {
  int attention_norm = -1;
  int q = -1, k = -1, v = -1, o = -1;
  int q_bias = -1, k_bias = -1, v_bias = -1;
  int mlp_norm = -1;
  int gate = -1, up = -1, down = -1;
};

// A layer's matrices in the order of its GEMM sites.
constexpr int kLayerMatrices = 7;
inline std::array<int, kLayerMatrices> matrices_of(const LayerParameters& layer) {
  return {layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down};
}

class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](int index) const { return parameters_[static_cast<size_t>(index)]; }
  const Parameter* find(const std::string& name) const;  // nullptr when absent
  // The weight that a GEMM site multiplies by; the site is one of the model's.
  const Parameter& weight_of(const std::string& site) const;
  const std::vector<LayerParameters>& layers() const { return layers_; }
  int embedding() const { return embedding_; }
  int head() const { return head_; }  // the embedding when tied
  int final_norm() const { return final_norm_; }
  int64_t elements() const { return elements_; }  // with the gaps
  int64_t decayed() const { return decayed_; }    // elements [0, decayed) get weight decay

 private:
  int add(std::string name, std::vector<int64_t> shape);

  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> layers_;
  int embedding_ = -1;
  int head_ = -1;
  int final_norm_ = -1;
  int64_t elements_ = 0;
  int64_t decayed_ = 0;
};

}  // namespace gnomon
