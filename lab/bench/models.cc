#include "lab/bench/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr int kLlamaVocabulary = 128256;
constexpr int kGptVocabulary = 50304;

ModelConfig qwen(int layers, int width, int heads, int kv_heads, int ffn, int vocabulary,
                 bool tied) {
  return {.layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = ffn,
          .vocabulary = vocabulary,
          .context = 32768,
          .qkv_bias = true,
          .tie_embeddings = tied,
          .rope_theta = 1e6,
          .norm_eps = 1e-6};
}

ModelConfig llama(int layers, int width, int heads, int ffn, bool tied) {
  return {.layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = 8,
          .ffn = ffn,
          .vocabulary = kLlamaVocabulary,
          .context = 8192,
          .tie_embeddings = tied,
          .rope_theta = 5e5};
}

// GPT-2's layers, width, heads and vocabulary, with a SwiGLU of as many weights.
ModelConfig gpt2(int layers, int width, int heads, int ffn) {
  return {.layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .ffn = ffn,
          .vocabulary = kGptVocabulary};
}

const std::map<std::string, ModelConfig>& all_models() {
  static const std::map<std::string, ModelConfig> models = {
      {"gpt2-124m", gpt2(12, 768, 12, 2048)},
      {"gpt2-1558m", gpt2(48, 1600, 25, 4272)},
      {"qwen2.5-0.5b", qwen(24, 896, 14, 2, 4864, 151936, true)},
      {"qwen2.5-1.5b", qwen(28, 1536, 12, 2, 8960, 151936, true)},
      {"qwen2.5-3b", qwen(36, 2048, 16, 2, 11008, 151936, true)},
      {"qwen2.5-7b", qwen(28, 3584, 28, 4, 18944, 152064, false)},
      {"llama-1b", llama(16, 2048, 32, 8192, true)},
      {"llama-3b", llama(28, 3072, 24, 8192, true)},
      {"llama-8b", llama(32, 4096, 32, 14336, false)},
      {"llama-70b", llama(80, 8192, 64, 28672, false)}};
  return models;
}

}  // namespace

const std::vector<std::string>& bench_model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (const auto& [name, model] : all_models()) found.push_back(name);
    return found;
  }();
  return names;
}

ModelConfig bench_model(const std::string& name) {
  const auto found = all_models().find(name);
  if (found != all_models().end()) return found->second;
  throw ConfigError("bench", 0, "model", name,
                    fmt::format("{}", fmt::join(bench_model_names(), ", ")));
}

const std::vector<GptSize>& gpt3_sizes() {
  static const std::vector<GptSize> sizes = {
      {"125M", 768, 12},  {"350M", 1024, 16}, {"760M", 1536, 16}, {"1.3B", 2048, 16},
      {"2.7B", 2560, 32}, {"6.7B", 4096, 32}, {"13B", 5120, 40},  {"175B", 12288, 96}};
  return sizes;
}

ModelConfig one_block(const GptSize& size) {
  constexpr int kMultiple = 128;
  const int ffn = (size.width * 8 / 3 + kMultiple - 1) / kMultiple * kMultiple;
  return {.layers = 1,
          .width = size.width,
          .heads = size.heads,
          .kv_heads = size.heads,
          .ffn = ffn,
          .vocabulary = 256};
}

}  // namespace gnomon
