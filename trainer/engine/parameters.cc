#include "trainer/engine/parameters.h"

#include <fmt/format.h>

namespace gnomon {

ParameterLayout::ParameterLayout(const ModelConfig& config) {
  int64_t width = config.width;
  int64_t kv_width = config.kv_width();
  int64_t attention_width = config.attention_width();
  embedding_ = add("model.embed_tokens.weight", {config.vocabulary, width});
  layers_.resize(static_cast<size_t>(config.layers));
  for (int index = 0; index < config.layers; ++index) {
    LayerParameters& layer = layers_[static_cast<size_t>(index)];
    std::string prefix = fmt::format("model.layers.{}.", index);
    layer.q = add(prefix + "self_attn.q_proj.weight", {attention_width, width});
    layer.k = add(prefix + "self_attn.k_proj.weight", {kv_width, width});
    layer.v = add(prefix + "self_attn.v_proj.weight", {kv_width, width});
    layer.o = add(prefix + "self_attn.o_proj.weight", {width, attention_width});
    layer.gate = add(prefix + "mlp.gate_proj.weight", {config.ffn, width});
    layer.up = add(prefix + "mlp.up_proj.weight", {config.ffn, width});
    layer.down = add(prefix + "mlp.down_proj.weight", {width, config.ffn});
  }
  head_ = config.tie_embeddings ? embedding_ : add("lm_head.weight", {config.vocabulary, width});
  decayed_ = elements_;
  for (int index = 0; index < config.layers; ++index) {
    LayerParameters& layer = layers_[static_cast<size_t>(index)];
    std::string prefix = fmt::format("model.layers.{}.", index);
    layer.attention_norm = add(prefix + "input_layernorm.weight", {width});
    if (config.qkv_bias) {
      layer.q_bias = add(prefix + "self_attn.q_proj.bias", {attention_width});
      layer.k_bias = add(prefix + "self_attn.k_proj.bias", {kv_width});
      layer.v_bias = add(prefix + "self_attn.v_proj.bias", {kv_width});
    }
    layer.mlp_norm = add(prefix + "post_attention_layernorm.weight", {width});
  }
  final_norm_ = add("model.norm.weight", {width});
}

int ParameterLayout::add(std::string name, std::vector<int64_t> shape) {
  constexpr int64_t kAlignment = 32;
  Parameter parameter{std::move(name), std::move(shape), elements_, 1};
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

}  // namespace gnomon
