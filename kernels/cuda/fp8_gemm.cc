#include "kernels/cuda/fp8_gemm.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <cstring>
#include <span>

#include "kernels/cuda/check.h"
#include "kernels/cuda/owned.h"

namespace gnomon::cuda {
namespace {

constexpr int64_t kMultiple = 16;
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Fp8Algorithm::opaque));

void refuse(const std::string& key, const std::string& value, const std::string& accepted) {
  throw ConfigError("FP8 product", 0, key, value, accepted);
}

void check_shape(const Fp8GemmShape& s) {
  auto is_fp8 = [](Format format) { return format == Format::kE4m3 || format == Format::kE5m2; };
  if (!is_fp8(s.a_format) || !is_fp8(s.b_format) ||
      (s.a_format == Format::kE5m2 && s.b_format == Format::kE5m2)) {
    refuse("formats", fmt::format("{} and {}", format_name(s.a_format), format_name(s.b_format)),
           "e4m3 with e4m3, e4m3 with e5m2 or e5m2 with e4m3");
  }
  if (s.d_format != Format::kFp32 && s.d_format != Format::kBf16) {
    refuse("output", std::string(format_name(s.d_format)), "fp32 or bf16");
  }
  if (s.m <= 0 || s.n <= 0 || s.k <= 0 || s.n % kMultiple != 0 || s.k % kMultiple != 0) {
    refuse("shape", fmt::format("m {}, n {}, k {}", s.m, s.n, s.k),
           "positive numbers, n and k multiples of 16");
  }
}

// The library counts in columns: its first operand is our B, its second our A, and its D, a matrix
// of n × m in columns, is our D in rows.
class Product {
 public:
  Product(const Fp8GemmShape& s, const float* scale_a, const float* scale_b) {
    check(GNOMON_LT(cublasLtMatmulDescCreate)(operation_.put(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(operation_.get(), CUBLASLT_MATMUL_DESC_FAST_ACCUM,
        static_cast<int8_t>(s.fast_accumulate ? 1 : 0));
    set(operation_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_b);
    set(operation_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_a);
    create(first_, type_of(s.b_format), s.k, s.n, s.k);
    create(second_, type_of(s.a_format), s.k, s.m, s.k);
    create(result_, type_of(s.d_format), s.n, s.m, s.n);
  }

  cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  cublasLtMatrixLayout_t first() const { return first_.get(); }
  cublasLtMatrixLayout_t second() const { return second_.get(); }
  cublasLtMatrixLayout_t result() const { return result_.get(); }

 private:
  Operation operation_;
  Layout first_, second_, result_;
};

// Only for people: an attribute that an algorithm does not have is "-".
template <class T>
std::string config(const cublasLtMatmulAlgo_t& algorithm,
                   cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  const cublasStatus_t status = GNOMON_LT(cublasLtMatmulAlgoConfigGetAttribute)(
      &algorithm, attribute, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? fmt::format("{}", value) : "-";
}

std::string describe(const cublasLtMatmulAlgo_t& it) {
  return fmt::format(
      "algorithm {}, tile {}, stages {}, split {}, custom {}, inner shape {}, cluster {}",
      config<int32_t>(it, CUBLASLT_ALGO_CONFIG_ID),
      config<uint32_t>(it, CUBLASLT_ALGO_CONFIG_TILE_ID),
      config<uint32_t>(it, CUBLASLT_ALGO_CONFIG_STAGES_ID),
      config<int32_t>(it, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
      config<uint32_t>(it, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
      config<uint16_t>(it, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
      config<uint16_t>(it, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
}

}  // namespace

struct Fp8Gemm::Handle {
  Handle() : workspace(kWorkspaceBytes), one(sizeof(float)) {
    const float value = 1.0f;
    one.copy_from_host(&value, sizeof(value));
    check(GNOMON_LT(cublasLtCreate)(library.put()), "cublasLtCreate");
  }
  DeviceBuffer workspace;
  DeviceBuffer one;  // a scale, where only the shape is known yet
  LibraryHandle library;
};

Fp8Gemm::Fp8Gemm() : handle_(std::make_unique<Handle>()) {}
Fp8Gemm::~Fp8Gemm() = default;

std::vector<Fp8Algorithm> Fp8Gemm::algorithms(const Fp8GemmShape& shape, int max) const {
  check_shape(shape);
  GNOMON_ASSERT(max > 0);
  const auto* one = static_cast<const float*>(handle_->one.data());
  const Product product(shape, one, one);
  Preference preference;
  prefer_whole_sums(preference, uint64_t{kWorkspaceBytes});
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(max));
  int count = 0;
  check(GNOMON_LT(cublasLtMatmulAlgoGetHeuristic)(
            handle_->library.get(), product.operation(), product.first(), product.second(),
            product.result(), product.result(), preference.get(), max, found.data(), &count),
        fmt::format("cublasLtMatmulAlgoGetHeuristic for {} × {} × {}", shape.m, shape.n, shape.k));
  std::vector<Fp8Algorithm> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& it :
       std::span(found).first(static_cast<size_t>(count))) {
    if (it.state != CUBLAS_STATUS_SUCCESS) continue;
    Fp8Algorithm& made = algorithms.emplace_back();
    std::memcpy(made.opaque.data(), &it.algo, sizeof(it.algo));
    made.workspace_bytes = it.workspaceSize;
    made.description = describe(it.algo);
  }
  if (algorithms.empty()) {
    throw CudaError(fmt::format("cuBLASLt has no algorithm for an FP8 product of {} × {} × {}",
                                shape.m, shape.n, shape.k));
  }
  return algorithms;
}

void Fp8Gemm::run(const Fp8GemmShape& shape, const Fp8Algorithm& algorithm, const void* a,
                  const float* scale_a, const void* b, const float* scale_b, void* d,
                  Stream stream) const {
  check_shape(shape);
  GNOMON_ASSERT(algorithm.workspace_bytes <= handle_->workspace.bytes());
  const Product product(shape, scale_a, scale_b);
  cublasLtMatmulAlgo_t chosen{};
  std::memcpy(&chosen, algorithm.opaque.data(), sizeof(chosen));
  const float alpha = 1.0f, beta = 0.0f;
  check(GNOMON_LT(cublasLtMatmul)(handle_->library.get(), product.operation(), &alpha, b,
                                  product.first(), a, product.second(), &beta, d, product.result(),
                                  d, product.result(), &chosen, handle_->workspace.data(),
                                  handle_->workspace.bytes(), stream),
        fmt::format("cublasLtMatmul of {} × {} × {} ({})", shape.m, shape.n, shape.k,
                    algorithm.description));
}

}  // namespace gnomon::cuda
