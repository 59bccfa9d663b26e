// Where every parameter lies: one flat numbering of elements shared by working weights, masters,
// moments and gradients. Matrices come first (they get weight decay), then biases and norms; q, k,
// v of a layer are neighbours, and so are gate and up. Each parameter starts at a multiple of 32
// elements (64 bytes in BF16).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/engine/architecture.h"

namespace gnomon {

struct Parameter {
  std::string name;  // Hugging Face's
  std::vector<int64_t> shape;
  int64_t offset = 0;  // elements
  int64_t size = 0;    // elements
  // In a new model: a vector has this value, a matrix random ones, smaller where it adds to the
  // residual.
  float first = 0;
  bool adds_to_residual = false;
};

// Indices into ParameterLayout::all(), in the order of the table's sites and of its vectors.
struct LayerParameters {
  std::vector<int> matrices;
  std::vector<int> vectors;
};

class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](int index) const { return parameters_[static_cast<size_t>(index)]; }
  const Parameter* find(const std::string& name) const;  // nullptr when absent
  // The weight that a GEMM site multiplies by; the site is one of the model's.
  const Parameter& weight_of(const std::string& site) const;
  // The same as an index; by a site's place in the model's order.
  int matrix(int site) const;
  const LayerTable& table() const { return table_; }
  const std::vector<LayerParameters>& layers() const { return layers_; }
  int embedding() const { return embedding_; }
  int head() const { return head_; }  // the embedding when tied
  int final_norm() const { return final_norm_; }
  int64_t elements() const { return elements_; }  // with the gaps
  int64_t decayed() const { return decayed_; }    // elements [0, decayed) get weight decay

 private:
  int add(std::string name, std::vector<int64_t> shape);

  LayerTable table_;
  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> layers_;
  int embedding_ = -1;
  int head_ = -1;
  int final_norm_ = -1;
  int64_t elements_ = 0;
  int64_t decayed_ = 0;
};

}  // namespace gnomon
