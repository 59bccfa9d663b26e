// What models are made of, as tables: a layer's GEMM sites and vectors, and the families of
// transformers' models. Parameters, memory, passes, shapes, import and export read them; what a
// layer does between them to q, k and v is in head_steps.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/engine/model_config.h"

namespace gnomon {

// Neighbouring sites that read one input, in the order of the passes.
enum class SiteGroupName { kQkv, kO, kGateUp, kDown, kHead };

// A product with a weight [out, in].
struct Site {
  std::string name;  // in a layer's table without "model.layers.N."
  int64_t in = 0, out = 0;
  SiteGroupName group = SiteGroupName::kQkv;
  bool adds_to_residual = false;
};

// A norm's weight or a bias.
struct LayerVector {
  std::string name;  // without "model.layers.N."
  int64_t size = 0;
  float first = 0;  // every element of a new model
};

// All layers of a model are alike.
struct LayerTable {
  explicit LayerTable(const ModelConfig& config);

  int count() const { return static_cast<int>(sites.size()); }
  // The place of one of `vectors`, which must be there.
  int vector(const std::string& name) const;

  std::vector<Site> sites;
  std::vector<LayerVector> vectors;
};

// "model.layers.N."
std::string layer_prefix(int layer);

// Every site of a model under its full name, layer by layer; lm_head is the last one.
std::vector<Site> all_sites(const ModelConfig& config);

// A layer's groups as one product each: "qkv", "o_proj", "gate_up", "down_proj".
struct LayerProduct {
  std::string name;
  int64_t in = 0, out = 0;
};
std::vector<LayerProduct> layer_products(const ModelConfig& config);

// Models that transformers has a class for.
struct ModelFamily {
  const char* type;                           // model_type of config.json
  const char* class_name;                     // in `architectures`
  std::vector<bool ModelConfig::*> features;  // what its models have, and others have not
  std::vector<const char*> off;               // keys that are written as false, and must be false
  int head_dim = 0;  // where config.json has none; 0: hidden_size / num_attention_heads
};
const std::vector<ModelFamily>& model_families();
// Throws ConfigError (file "model", key, value, accepted) where no family has just its features.
const ModelFamily& family_of(const ModelConfig& config);

}  // namespace gnomon
