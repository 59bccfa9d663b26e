// Matrix products of BF16 or FP32 operands by oneDNN with FP32 accumulation: prepared once for each
// shape, then run without any allocation of ours.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"

namespace gnomon::cpu {

// Sets the number of OpenMP threads that oneDNN sees on the calling thread, and puts the old one
// back.
class ThreadCountGuard {
 public:
  explicit ThreadCountGuard(int threads);
  ~ThreadCountGuard();
  ThreadCountGuard(const ThreadCountGuard&) = delete;
  ThreadCountGuard& operator=(const ThreadCountGuard&) = delete;

 private:
  int before_;
};

// A product with its leading dimensions (row strides in elements of what is stored).
struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool fp32_operands = false;  // and then the output is FP32 too
  bool fp32_output = false;
  bool accumulate = false;
  bool scaled = false;   // with a run-time alpha
  bool columns = false;  // with one for each column
  // clang-tidy 14 takes the comparison's hidden zero for a null pointer.
  auto operator<=>(const MatmulShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

// One prepared product. Not to be run by two threads at once. Where the library has no products of
// BF16 operands (below AVX-512) they are widened to FP32 in scratch memory: the products of values
// are the same, and one rounding is made at the end.
class Matmul {
 public:
  Matmul(const dnnl::engine& engine, const MatmulShape& shape);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  // `alpha` is one number when the shape says `scaled`, n when it says `columns`. `scratch` has
  // scratch_bytes(), 64-byte aligned.
  void run(dnnl::stream& stream, const float* alpha, const void* a, const void* b, void* c,
           std::byte* scratch);

 private:
  void prepare(const dnnl::engine& engine, const MatmulShape& shape);
  void run_widened(dnnl::stream& stream, const void* a, const void* b, void* c, std::byte* scratch);
  void execute(dnnl::stream& stream, const void* a, const void* b, void* c, std::byte* scratch);

  std::optional<MatmulShape> widened_;  // as it was asked for
  int64_t library_scratch_bytes_ = 0;   // of those below; the widened matrices lie behind
  int64_t scratch_bytes_ = 0;
  dnnl::memory a_, b_, c_, alpha_, scratch_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// Memory that grows to the largest size asked for, 64-byte aligned; its content is not kept when it
// grows.
class GrowingScratch {
 public:
  std::byte* at_least(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t bytes_ = 0;
};

// All products of a backend: BF16 ones by kernels/cpu/gemm_avx512.h where that runs, the others by
// oneDNN, prepared by shape.
class GemmCache {
 public:
  explicit GemmCache(int threads);

  // E is bf16 or float, Out is E or float.
  // `alphas` is one number or, for Out = E, one for each column.
  template <class E, class Out>
  void run(const GemmShape& shape, std::span<const float> alphas, const E* a, const E* b, Out* c,
           bool accumulate);
  int64_t scratch_bytes() const { return scratch_.bytes(); }
  const dnnl::engine& engine() const { return engine_; }

 private:
  Matmul& prepared(const MatmulShape& shape);

  int threads_;
  bool own_gemms_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<MatmulShape, std::unique_ptr<Matmul>> matmuls_;
  GrowingScratch scratch_;
};

}  // namespace gnomon::cpu
