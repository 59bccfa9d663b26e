// `gnomon bench step`: how fast a training step is in BF16 and in FP8, as a share of what the
// library's plain BF16 GEMM reaches at the model's largest GEMM and over all GEMMs of a step, all
// measured interleaved in the same run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/engine/engine.h"

namespace gnomon {

struct BenchStepOptions {
  std::string size = "10m";  // one of bench_step_sizes(), unless there is a model
  std::string model = {};    // one of bench_model_names(), with the batch below
  int sequence = 1024;       // tokens of one
  int sequences = 8;         // in a micro-batch
  int accumulation = 1;      // micro-batches in a step
  MemoryChoice memory = {};
  MomentFormat moments = MomentFormat::kFp32;  // of AdamW, both
  Device device = Device::kCpu;
  int threads = 2;
  std::string recipe = "current";           // of the FP8 steps; any but "none"
  std::string accumulate = "fp32";          // how their products add up: "fp32", "hopper"
  std::vector<std::string> keep_bf16 = {};  // globs of sites that the FP8 steps leave in BF16
  int rounds = 5;  // of BF16 steps, FP8 steps and the GEMM each; medians are reported
  // In a round, of each kind. With more than one another goes before them, untimed but for what it
  // takes to change the plan.
  int steps = 1;
  double peak_bf16 = 0;  // FLOP/s of the device's data sheet; 0: as nominal_peak() says
  double peak_fp8 = 0;
  std::filesystem::path scratch =
      std::filesystem::temp_directory_path();  // for the synthetic tokens
};

// FLOP/s without sparsity as the maker states them, by a device's name; 0 where it is not known
// here. An FP8 peak of 0 is of a device that has no FP8.
struct NominalPeak {
  double bf16 = 0;
  double fp8 = 0;
};
NominalPeak nominal_peak(const std::string& device);

// "demo", "10m", "100m".
const std::vector<std::string>& bench_step_sizes();
// Model and batch of a size. Throws ConfigError naming the accepted ones.
EngineConfig bench_step_config(const std::string& size);
// Those of the options.
EngineConfig bench_step_config(const BenchStepOptions& options);
// Floating point operations of one training step: for each token 6 for every weight of a GEMM site
// (a multiplication and an addition in each of fprop, dgrad and wgrad), and 6·layers·tokens·width
// for attention (two products in the forward pass, four in the backward pass, half of each masked
// away).
double step_flops(const EngineConfig& config);
// Runs it and returns one JSON object with the keys bf16 and fp8 (tokens_per_second, step_seconds,
// step_cpu_seconds of all threads, gemm_share and step_gemm_share each: the step's FLOP rate over
// that of the largest GEMM and over that of the step's GEMMs run alone; flops_per_second; where the
// peak is known model_flops_utilisation, of the BF16 peak, and speed_of_light_share, with every
// product at the peak of its own precision; with several steps switch_steps, what a change to this
// plan cost in steps), fp8_over_bf16, gemm, step_gemms, memory_planned_bytes (the arenas and what
// the program itself has when it is ready for the first step), memory_peak_bytes, machine, build,
// threads, flop_formula.
std::string bench_step_json(const BenchStepOptions& options);

}  // namespace gnomon
