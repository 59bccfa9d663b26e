// `gnomon bench block`: one transformer block forward and backward, FP8 over BF16, for the widths
// of the GPT-3 family at several lengths of sequences and sizes of batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/devices.h"
#include "lab/bench/clock.h"

namespace gnomon {

struct BenchBlockOptions {
  Device device = Device::kCpu;
  int threads = 2;
  std::string recipe = "current";
  std::string accumulate = "fp32";      // how FP8 products add up: "fp32", "hopper"
  std::vector<std::string> sizes = {};  // names of gpt3_sizes(); none: all
  std::vector<int> sequences = {1024, 2048, 4096, 8192};  // tokens of one
  std::vector<int> batches = {1, 2, 4, 8};                // sequences in a pass, ascending
  BenchRounds rounds = {.rounds = 3, .least_seconds = 0.02};
};

// Returns one JSON object: `cells`, each with size, width, ffn, sequence, batch, bf16_seconds,
// fp8_seconds, fp8_over_bf16, or `empty`, why there are none (too little memory, an error);
// block_flops, machine, libraries, build. The block's model ends in a vocabulary of 256, which is
// measured along. Throws ConfigError, Error where the device cannot be used.
std::string bench_block_json(const BenchBlockOptions& options);

// The table of such an object as a picture in SVG: red below 1, yellow to 1.3, green above.
std::string bench_block_picture(const std::string& json);

}  // namespace gnomon
