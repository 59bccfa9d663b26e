// FP8 products by cuBLASLt in the one layout it has for them on Hopper, which in row-major words is
// D[m,n] = (A[m,k]·B[n,k]ᵀ)·scale_a·scale_b: both operands have what is summed over innermost.
// dgrad and wgrad need transposed copies of their operands for that.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/formats.h"

namespace gnomon::cuda {

struct Fp8GemmShape {
  int64_t m = 0, n = 0, k = 0;      // n and k multiples of 16
  Format a_format = Format::kE4m3;  // E4M3 or E5M2, not E5M2 for both
  Format b_format = Format::kE4m3;
  Format d_format = Format::kFp32;  // FP32 or BF16
  bool fast_accumulate = false;     // no periodic promotion of the sums to FP32
};

// One of the library's ways to run one shape: valid for this shape and this version of the library.
struct Fp8Algorithm {
  std::array<uint64_t, 8> opaque{};
  size_t workspace_bytes = 0;
  std::string description;  // "algorithm 66, tile 20, stages 36, split 1, ..."
};

// A handle with its workspace. One stream at a time; not to be used by two threads at once.
class Fp8Gemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  Fp8Gemm();
  ~Fp8Gemm();
  Fp8Gemm(const Fp8Gemm&) = delete;
  Fp8Gemm& operator=(const Fp8Gemm&) = delete;

  // At most `max` algorithms, the one that the library thinks fastest first; none of them splits
  // what is summed over. Throws CudaError when there is none, ConfigError for a shape that the
  // library does not take, naming what it does.
  std::vector<Fp8Algorithm> algorithms(const Fp8GemmShape& shape, int max) const;

  // All pointers are of the device, 16-byte aligned, dense and row-major. The scales are one FP32
  // each and multiply as given (those that take codes back to values). Returns when the work is on
  // the stream. Throws CudaError: the library finds some mistakes only here.
  void run(const Fp8GemmShape& shape, const Fp8Algorithm& algorithm, const void* a,
           const float* scale_a, const void* b, const float* scale_b, void* d, Stream stream) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace gnomon::cuda
