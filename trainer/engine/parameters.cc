#include "trainer/engine/parameters.h"

namespace gnomon {

ParameterLayout::ParameterLayout(const ModelConfig& config) : table_(config) {
  const int64_t width = config.width;
  embedding_ = add("model.embed_tokens.weight", {config.vocabulary, width});
  layers_.resize(static_cast<size_t>(config.layers));
  for (int index = 0; index < config.layers; ++index) {
    for (const Site& site : table_.sites) {
      const int matrix = add(layer_prefix(index) + site.name + ".weight", {site.out, site.in});
      parameters_.back().adds_to_residual = site.adds_to_residual;
      layers_[static_cast<size_t>(index)].matrices.push_back(matrix);
    }
  }
  head_ = config.tie_embeddings ? embedding_ : add("lm_head.weight", {config.vocabulary, width});
  decayed_ = elements_;
  for (int index = 0; index < config.layers; ++index) {
    for (const LayerVector& vector : table_.vectors) {
      const int parameter = add(layer_prefix(index) + vector.name, {vector.size});
      parameters_.back().first = vector.first;
      layers_[static_cast<size_t>(index)].vectors.push_back(parameter);
    }
  }
  final_norm_ = add("model.norm.weight", {width});
  parameters_.back().first = 1;
}

int ParameterLayout::add(std::string name, std::vector<int64_t> shape) {
  constexpr int64_t kAlignment = 32;
  Parameter parameter{
      .name = std::move(name), .shape = std::move(shape), .offset = elements_, .size = 1};
  for (int64_t extent : parameter.shape) parameter.size *= extent;
  elements_ += (parameter.size + kAlignment - 1) / kAlignment * kAlignment;
  parameters_.push_back(std::move(parameter));
  return static_cast<int>(parameters_.size()) - 1;
}

const Parameter* ParameterLayout::find(const std::string& name) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

const Parameter& ParameterLayout::weight_of(const std::string& site) const {
  const Parameter* found = find(site + ".weight");
  return found == nullptr ? parameters_[static_cast<size_t>(head_)] : *found;
}

int ParameterLayout::matrix(int site) const {
  const int layer = site / table_.count();
  if (layer == static_cast<int>(layers_.size())) return head_;
  return layers_[static_cast<size_t>(layer)].matrices[static_cast<size_t>(site % table_.count())];
}

}  // namespace gnomon
