// `gnomon bench step`: how fast a training step is in BF16 and in FP8, as a share of what the
// library's plain BF16 GEMM reaches at the model's largest GEMM and over all GEMMs of a step, all
// measured interleaved in the same run.
#pragma once

#include <filesystem>
#include <string>

#include "trainer/engine/engine.h"

namespace gnomon {

struct BenchStepOptions {
  std::string size = "10m";  // one of bench_step_sizes()
  int threads = 2;
  std::string recipe = "current";  // of the FP8 steps; any but "none"
  int rounds = 5;  // of one BF16 step, one FP8 step and the GEMM each; medians are reported
  std::filesystem::path scratch =
      std::filesystem::temp_directory_path();  // for the synthetic tokens
};

// "demo", "10m", "100m".
const std::vector<std::string>& bench_step_sizes();
// Model and batch of a size. Throws ConfigError naming the accepted ones.
EngineConfig bench_step_config(const std::string& size);
// Floating point operations of one training step: for each token 6 for every weight of a GEMM site
// (a multiplication and an addition in each of fprop, dgrad and wgrad), and 6·layers·tokens·width
// for attention (two products in the forward pass, four in the backward pass, half of each masked
// away).
double step_flops(const EngineConfig& config);
// Runs it and returns one JSON object with the keys bf16 and fp8 (tokens_per_second, step_seconds,
// step_cpu_seconds of all threads, gemm_share and step_gemm_share each: the step's FLOP rate over
// that of the largest GEMM and over that of the step's GEMMs run alone), fp8_over_bf16, gemm,
// step_gemms, memory_planned_bytes (the arenas and what the program itself has when it is ready for
// the first step), memory_peak_bytes, machine, build, threads, flop_formula.
std::string bench_step_json(const BenchStepOptions& options);

}  // namespace gnomon
