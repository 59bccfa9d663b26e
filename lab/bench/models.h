// Shapes of models that people know, for the benchmarks.
#pragma once

#include <string>
#include <vector>

#include "trainer/engine/model_config.h"

namespace gnomon {

// "qwen2.5-0.5b", ..., "llama-70b", ...
const std::vector<std::string>& bench_model_names();
// Throws ConfigError naming the accepted ones.
ModelConfig bench_model(const std::string& name);

// The family of GPT-3 (arXiv 2005.14165, table 2.1): widths and heads. 13B has width 5120, a
// multiple of 128, and 1.3B 16 heads of 128.
struct GptSize {
  std::string name;  // "125M"
  int width = 0;
  int heads = 0;
};
const std::vector<GptSize>& gpt3_sizes();
// One block of this width as our models have it, at the ends of a vocabulary of 256: SwiGLU with
// 8/3·width, rounded up to a multiple of 128, has the weights that GPT-3's 4·width has.
ModelConfig one_block(const GptSize& size);

}  // namespace gnomon
