// `gnomon bench gemm`: the products of linear layers, in BF16 and of FP8 values, with the casts and
// without, through the backend that training uses, all in turn in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/devices.h"
#include "lab/bench/clock.h"

namespace gnomon {

struct BenchGemmOptions {
  Device device = Device::kCpu;
  int threads = 2;
  // Names of bench_model_names(): fprop, dgrad and wgrad of their layers' products are measured.
  std::vector<std::string> models = {};
  // "MxNxK", as an fprop: M tokens, K inputs, N outputs.
  std::vector<std::string> sizes = {};
  int64_t tokens = 8192;  // of a model's products
  std::vector<std::string> recipes = {"current", "delayed", "rowwise", "block"};
  // How FP8 products add up: "fp32", "hopper". The second is measured where it differs.
  std::vector<std::string> accumulate = {"fp32"};
  BenchRounds rounds = {};
};

// Runs it and returns one JSON object: `products`, each with model, site, gemm, m, n, k, `bf16` and
// `fp8`, by recipe ("current", or "current/hopper" with Hopper's sums): seconds, with_cast_seconds
// (both operands rounded anew for every product, their largest values looked for where the recipe
// wants that), flops_per_second, share (of the highest rate of that precision in the run),
// over_bf16, with_cast_over_bf16, or `error`; highest rates; machine, libraries, build. Throws
// ConfigError, Error where the device cannot be used.
std::string bench_gemm_json(const BenchGemmOptions& options);

}  // namespace gnomon
