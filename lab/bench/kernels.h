// `gnomon bench kernels`: the operations that memory bounds, in bytes read and written a second,
// beside a copy of as many bytes within the same memory, in turn in the same run.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/devices.h"
#include "lab/bench/clock.h"

namespace gnomon {

struct BenchKernelsOptions {
  Device device = Device::kCpu;
  int threads = 2;
  int64_t tokens = 8192;  // rows of activations
  int64_t width = 4096;   // a multiple of 128, as is the next
  int64_t ffn = 14336;
  int64_t vocabulary = 128256;            // a multiple of 16
  int64_t logit_rows = 2048;              // of the cross-entropy
  int64_t parameters = int64_t{1} << 27;  // of AdamW, a multiple of 128
  BenchRounds rounds = {};
};

// Returns one JSON object: `kernels`, each with name, shape, bytes (what must be read and written
// at least), seconds, bytes_per_second, copy_bytes_per_second, over_copy, or `error`;
// least_over_copy; machine, libraries, build. Throws ConfigError, Error.
std::string bench_kernels_json(const BenchKernelsOptions& options);

}  // namespace gnomon
