#include "trainer/engine/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/errors.h"

namespace gnomon {
namespace {

bool has(const ModelFamily& family, bool ModelConfig::*feature) {
  return std::ranges::find(family.features, feature) != family.features.end();
}

bool fits(const ModelFamily& family, const ModelConfig& config) {
  return std::ranges::all_of(model_families(), [&](const ModelFamily& other) {
    return std::ranges::all_of(other.features, [&](bool ModelConfig::*feature) {
      return config.*feature == has(family, feature);
    });
  });
}

std::string_view name_of(SiteGroupName group) {
  constexpr std::string_view kNames[] = {"qkv", "o_proj", "gate_up", "down_proj", "lm_head"};
  return kNames[static_cast<size_t>(group)];
}

}  // namespace

LayerTable::LayerTable(const ModelConfig& config) {
  using enum SiteGroupName;
  const int64_t width = config.width, ffn = config.ffn;
  const int64_t heads = config.attention_width(), kv_heads = config.kv_width();
  sites = {
      {"self_attn.q_proj", width, heads, kQkv},    {"self_attn.k_proj", width, kv_heads, kQkv},
      {"self_attn.v_proj", width, kv_heads, kQkv}, {"self_attn.o_proj", heads, width, kO, true},
      {"mlp.gate_proj", width, ffn, kGateUp},      {"mlp.up_proj", width, ffn, kGateUp},
      {"mlp.down_proj", ffn, width, kDown, true}};
  vectors.push_back({"input_layernorm.weight", width, 1});
  if (config.qkv_bias) {
    vectors.push_back({"self_attn.q_proj.bias", heads});
    vectors.push_back({"self_attn.k_proj.bias", kv_heads});
    vectors.push_back({"self_attn.v_proj.bias", kv_heads});
  }
  if (config.qk_norm) {
    vectors.push_back({"self_attn.q_norm.weight", config.head_dim(), 1});
    vectors.push_back({"self_attn.k_norm.weight", config.head_dim(), 1});
  }
  vectors.push_back({"post_attention_layernorm.weight", width, 1});
}

int LayerTable::vector(const std::string& name) const {
  const auto found = std::ranges::find(vectors, name, &LayerVector::name);
  GNOMON_ASSERT(found != vectors.end());
  return static_cast<int>(found - vectors.begin());
}

std::string layer_prefix(int layer) { return fmt::format("model.layers.{}.", layer); }

std::vector<Site> all_sites(const ModelConfig& config) {
  const LayerTable table(config);
  std::vector<Site> all;
  for (int layer = 0; layer < config.layers; ++layer) {
    for (Site site : table.sites) {
      site.name = layer_prefix(layer) + site.name;
      all.push_back(std::move(site));
    }
  }
  all.push_back({"lm_head", config.width, config.vocabulary, SiteGroupName::kHead});
  return all;
}

std::vector<LayerProduct> layer_products(const ModelConfig& config) {
  std::vector<LayerProduct> products;
  for (const Site& site : LayerTable(config).sites) {
    const std::string_view name = name_of(site.group);
    if (products.empty() || products.back().name != name)
      products.push_back({std::string(name), site.in, 0});
    products.back().out += site.out;
  }
  return products;
}

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> families = {
      {"llama", "LlamaForCausalLM", {}, {"attention_bias", "mlp_bias"}},
      // transformers' class has no key for its biases: they are always those of q, k and v.
      {"qwen2", "Qwen2ForCausalLM", {&ModelConfig::qkv_bias}, {}},
      {"qwen3", "Qwen3ForCausalLM", {&ModelConfig::qk_norm}, {"attention_bias"}, 128}};
  return families;
}

const ModelFamily& family_of(const ModelConfig& config) {
  std::vector<const char*> types;
  for (const ModelFamily& family : model_families()) {
    if (fits(family, config)) return family;
    types.push_back(family.type);
  }
  throw ConfigError(
      "model", 0, "qkv_bias", fmt::format("{}", config.qkv_bias),
      fmt::format("false where qk_norm is true: none of {} has both", fmt::join(types, ", ")));
}

}  // namespace gnomon
