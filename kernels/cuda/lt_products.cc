#include "kernels/cuda/lt_products.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <compare>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <tuple>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/owned.h"
#include "kernels/cuda/quantize.h"

namespace gnomon::cuda {
namespace {

constexpr int64_t kMultiple = 16;
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(LtAlgorithm::opaque));

cublasLtMatmulMatrixScale_t mode_of(FactorScale scale) {
  switch (scale) {
    case FactorScale::kRow:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case FactorScale::kBlock:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case FactorScale::kSquare:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

// All that an algorithm is chosen by.
struct Key {
  int64_t m, n, k, stride_a, stride_b, stride_c;
  Format a, b;
  FactorScale scale_a, scale_b;
  bool transposed_a, transposed_b, fp32_output, accumulate, fast;
  bool device_alpha;
  // clang-tidy 14 takes the comparison's hidden zero for a null pointer.
  auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
};

std::string in_words(const Key& key) {
  const auto factor = [](Format format, FactorScale scale, bool transposed, int64_t stride) {
    return fmt::format("{}, scales {}, {}, stride {}", format_name(format), static_cast<int>(scale),
                       transposed ? "terms outside" : "terms inside", stride);
  };
  return fmt::format(
      "a product of {} × {} × {} (left {}; right {}; result {}, stride {}{}{}{})", key.m, key.n,
      key.k, factor(key.a, key.scale_a, key.transposed_a, key.stride_a),
      factor(key.b, key.scale_b, !key.transposed_b, key.stride_b),
      key.fp32_output ? "FP32" : "BF16", key.stride_c, key.accumulate ? ", added to" : "",
      key.fast ? ", fast accumulation" : "", key.device_alpha ? ", alpha on the device" : "");
}

bool is_codes(const Factor& factor) { return factor.format != Format::kBf16; }
bool scaled(const Factor& factor) { return factor.scale != FactorScale::kNone; }

void check_shape(const Product& p, const Factor& a, const Factor& b) {
  if (!is_codes(a)) return;
  if (p.n % kMultiple != 0 || p.k % kMultiple != 0 || a.transposed || !b.transposed) {
    throw ConfigError("FP8 product", 0, "shape", fmt::format("m {}, n {}, k {}", p.m, p.n, p.k),
                      "n and k multiples of 16, both with the terms innermost");
  }
  if (a.format == Format::kE5m2 && b.format == Format::kE5m2) {
    throw ConfigError("FP8 product", 0, "formats", "e5m2 and e5m2",
                      "e4m3 with e4m3, e4m3 with e5m2 or e5m2 with e4m3");
  }
}

// Values in BF16 have their scales multiplied into alpha, on the device.
bool alpha_on_device(const Factor& a, const Factor& b) {
  return !is_codes(a) && (scaled(a) || scaled(b));
}

Key key_of(const Product& p, const Factor& a, const Factor& b) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .stride_a = a.stride,
          .stride_b = b.stride,
          .stride_c = p.stride_c,
          .a = a.format,
          .b = b.format,
          .scale_a = a.scale,
          .scale_b = b.scale,
          .transposed_a = a.transposed,
          .transposed_b = b.transposed,
          .fp32_output = p.fp32_output,
          .accumulate = p.accumulate,
          .fast = p.fast_accumulate,
          .device_alpha = alpha_on_device(a, b)};
}

// The library counts in columns: its first operand is our B, its second our A, and its result, n ×
// m in columns, is our C in rows. A matrix that we store k × n is its n × k.
struct Prepared {
  explicit Prepared(const Key& key) {
    check(GNOMON_LT(cublasLtMatmulDescCreate)(operation.put(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(operation.get(), CUBLASLT_MATMUL_DESC_TRANSA, key.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation.get(), CUBLASLT_MATMUL_DESC_TRANSB, key.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (key.a != Format::kBf16) {
      set(operation.get(), CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(key.fast ? 1 : 0));
      set(operation.get(), CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(key.scale_b));
      set(operation.get(), CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(key.scale_a));
    }
    if (key.device_alpha) {
      set(operation.get(), CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    }
    const auto stored = [](Layout& layout, Format format, bool transposed, int64_t outer,
                           int64_t terms, int64_t stride) {
      // With `transposed` rows of terms.
      create(layout, type_of(format), transposed ? terms : outer, transposed ? outer : terms,
             stride);
    };
    stored(first, key.b, key.transposed_b, key.n, key.k, key.stride_b);
    stored(second, key.a, !key.transposed_a, key.m, key.k, key.stride_a);
    create(result, key.fp32_output ? CUDA_R_32F : CUDA_R_16BF, key.n, key.m, key.stride_c);
  }

  Operation operation;
  Layout first, second, result;
  std::optional<cublasLtMatmulAlgo_t> chosen;
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

struct LtProducts::Library {
  Library() : workspace(kWorkspaceBytes), factors(3 * sizeof(float)) {
    const float values[3] = {0, 0, 1};
    factors.copy_from_host(values, sizeof(values));
    check(GNOMON_LT(cublasLtCreate)(handle.put()), "cublasLtCreate");
  }

  // The description of a product, with where its scales are.
  Prepared& prepare(const Key& key, const Factor& a, const Factor& b) {
    Prepared& prepared = known.try_emplace(key, key).first->second;
    if (is_codes(a)) {
      // The library answers no question about a product with scales that are nowhere.
      const auto somewhere = [this](const float* scales) {
        return scales == nullptr ? static_cast<const float*>(factors.data()) : scales;
      };
      set(prepared.operation.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
          somewhere(b.inverse_scales));
      set(prepared.operation.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
          somewhere(a.inverse_scales));
    }
    return prepared;
  }

  // Few rows and columns with many terms have algorithms that split the terms alone.
  std::vector<cublasLtMatmulAlgo_t> algorithms(const Prepared& prepared, const Key& key, int most) {
    GNOMON_ASSERT(most > 0);
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    std::vector<cublasLtMatmulAlgo_t> found;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (bool split : {false, true}) {
      Preference preference;
      prefer(preference, static_cast<uint64_t>(kWorkspaceBytes), split);
      int count = 0;
      status = GNOMON_LT(cublasLtMatmulAlgoGetHeuristic)(
          handle.get(), prepared.operation.get(), prepared.first.get(), prepared.second.get(),
          prepared.result.get(), prepared.result.get(), preference.get(), most, results.data(),
          &count);
      if (status != CUBLAS_STATUS_SUCCESS) continue;
      for (const auto& result : std::span(results).first(static_cast<size_t>(count))) {
        if (result.state == CUBLAS_STATUS_SUCCESS) found.push_back(result.algo);
      }
      if (!found.empty()) return found;
    }
    check(status, "cublasLtMatmulAlgoGetHeuristic for " + in_words(key));
    throw CudaError("cuBLASLt has no algorithm for " + in_words(key));
  }

  float* alpha() const { return static_cast<float*>(factors.data()); }
  const float* beta(bool accumulate) const { return alpha() + (accumulate ? 2 : 1); }

  DeviceBuffer workspace;
  DeviceBuffer factors;  // an alpha that is made on the device, 0 and 1
  LibraryHandle handle;
  std::map<Key, Prepared> known;
};

LtProducts::LtProducts() : library_(std::make_unique<Library>()) {}
LtProducts::~LtProducts() = default;

std::vector<LtAlgorithm> LtProducts::algorithms(const Product& p, const Factor& a, const Factor& b,
                                                int most) {
  check_shape(p, a, b);
  const Key key = key_of(p, a, b);
  std::vector<LtAlgorithm> algorithms;
  for (const auto& it : library_->algorithms(library_->prepare(key, a, b), key, most)) {
    LtAlgorithm& made = algorithms.emplace_back();
    std::memcpy(made.opaque.data(), &it, sizeof(it));
    made.description = describe(it);
  }
  return algorithms;
}

bool LtProducts::supports(const Product& p, const Factor& a, const Factor& b) {
  try {
    return !algorithms(p, a, b, 1).empty();
  } catch (const ConfigError&) {
    return false;
  } catch (const CudaError&) {
    return false;
  }
}

void LtProducts::multiply(const Product& p, const Factor& a, const Factor& b, void* c,
                          Stream stream, const LtAlgorithm* by) {
  check_shape(p, a, b);
  const Key key = key_of(p, a, b);
  Library& library = *library_;
  Prepared& prepared = library.prepare(key, a, b);
  cublasLtMatmulAlgo_t algorithm{};
  if (by != nullptr) {
    std::memcpy(&algorithm, by->opaque.data(), sizeof(algorithm));
  } else {
    if (!prepared.chosen) prepared.chosen = library.algorithms(prepared, key, 1).front();
    algorithm = *prepared.chosen;
  }
  const float alpha = p.alpha, beta = p.accumulate ? 1.0f : 0.0f;
  const void* alpha_at = &alpha;
  const void* beta_at = &beta;
  if (key.device_alpha) {
    multiply_factors(p.alpha, scaled(a) ? a.inverse_scales : nullptr,
                     scaled(b) ? b.inverse_scales : nullptr, library.alpha(), stream);
    alpha_at = library.alpha();
    beta_at = library.beta(p.accumulate);
  }
  check(GNOMON_LT(cublasLtMatmul)(library.handle.get(), prepared.operation.get(), alpha_at, b.data,
                                  prepared.first.get(), a.data, prepared.second.get(), beta_at, c,
                                  prepared.result.get(), c, prepared.result.get(), &algorithm,
                                  library.workspace.data(), library.workspace.bytes(), stream),
        fmt::format("cublasLtMatmul of {} × {} × {}", p.m, p.n, p.k));
}

}  // namespace gnomon::cuda
