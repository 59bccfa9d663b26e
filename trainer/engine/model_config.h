// The shape of a Llama-style decoder, in Hugging Face's terms (config.json of LlamaForCausalLM,
// Qwen2ForCausalLM or Qwen3ForCausalLM).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rotary.h"
#include "protocol/settings.h"

namespace gnomon {

// What config.json calls it: "default", "linear", "llama3".
std::string rope_scaling_name(RopeScaling::Kind kind);

struct ModelConfig {
  int layers = 4;              // num_hidden_layers
  int width = 128;             // hidden_size
  int heads = 4;               // num_attention_heads
  int kv_heads = 2;            // num_key_value_heads
  int head_width = 0;          // head_dim; 0 is width / heads
  int ffn = 352;               // intermediate_size
  int vocabulary = 257;        // vocab_size
  int context = 1024;          // max_position_embeddings
  bool qkv_bias = false;       // Qwen2
  bool qk_norm = false;        // Qwen3
  bool tie_embeddings = true;  // tie_word_embeddings
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};
  double norm_eps = 1e-5;  // rms_norm_eps
  double init_std = 0.02;  // initializer_range

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = ModelConfig;
    v("layers", &S::layers, Setting{.range = {1, 512}, .help = "Decoder layers."});
    v("width", &S::width, Setting{.range = {2, 65536}, .help = "Hidden size."});
    v("heads", &S::heads,
      Setting{.range = {1, 1024},
              .help = "Attention heads. They must divide `width` unless `head_dim` is given."});
    v("kv_heads", &S::kv_heads,
      Setting{.range = {1, 1024},
              .otherwise = "at most `heads`",
              .accepted = "a divisor of `heads`",
              .help = "Key and value heads."});
    v("head_dim", &S::head_width,
      Setting{.range = {0, 4096}, .otherwise = "`width / heads`", .help = "Size of a head; even."});
    v("ffn", &S::ffn, Setting{.range = {1, 1 << 20}, .help = "Feed-forward size."});
    v("vocabulary", &S::vocabulary,
      Setting{.range = {0, 1 << 20},
              .otherwise = "the dataset's",
              .help = "Number of tokens, at least the dataset's."});
    v("context", &S::context,
      Setting{.range = {1, 1 << 20}, .unit = "tokens", .help = "Longest sequence."});
    v("qkv_bias", &S::qkv_bias, Setting{.help = "Biases on q, k and v (Qwen2)."});
    v("qk_norm", &S::qk_norm, Setting{.help = "Norms on each head of q and k (Qwen3)."});
    v("tie_embeddings", &S::tie_embeddings, Setting{.help = "Shared embedding and output."});
    v("rope_theta", &S::rope_theta, Setting{.range = {1, 1e9}, .help = "RoPE base."});
    v("norm_eps", &S::norm_eps, Setting{.range = {1e-30, 1e-2}, .help = "ε of the norms."});
    v("init_std", &S::init_std,
      Setting{.range = {1e-30, 1}, .help = "Standard deviation of initial weights."});
  }

  int head_dim() const { return head_width > 0 ? head_width : width / heads; }
  int64_t attention_width() const { return int64_t{1} * heads * head_dim(); }  // of q and of o's x
  int64_t kv_width() const { return int64_t{1} * kv_heads * head_dim(); }      // of k, of v
  Rotary rotary() const { return {rope_theta, rope_scaling}; }
  int64_t parameters() const;
  // GEMM sites in model order: "model.layers.0.self_attn.q_proj", ..., "lm_head".
  std::vector<std::string> sites() const;
  // Throws ConfigError(file "model", key, value, accepted).
  void check() const;

  // config.json; `dtype` is what the weights beside it are stored as.
  std::string to_hf_json(const std::string& dtype = "bfloat16") const;
  // A key that is absent has transformers' default where it has one for every size of model. Throws
  // FormatError for what is missing or of the wrong type, ConfigError with key, value and what is
  // accepted for what this model does not compute (docs/models.md has the list).
  static ModelConfig from_hf_json(const std::string& json, const std::string& file);
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace gnomon
