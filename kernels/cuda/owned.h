// Descriptions that cuBLASLt makes and takes back, and what is set in them. Only for files of this
// folder.
#pragma once

#include <cublasLt.h>
#include <fmt/format.h>

#include <cstdint>

#include "base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cublaslt.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

inline cudaDataType_t type_of(Format format) {
  switch (format) {
    case Format::kE4m3:
      return CUDA_R_8F_E4M3;
    case Format::kE5m2:
      return CUDA_R_8F_E5M2;
    case Format::kBf16:
      return CUDA_R_16BF;
    case Format::kFp32:
      return CUDA_R_32F;
    default:
      break;
  }
  GNOMON_ASSERT(false);
  return CUDA_R_32F;
}

// Destroy()(it) gives it back.
template <class T, class Destroy>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (it_ != nullptr) Destroy()(it_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* put() { return &it_; }
  T get() const { return it_; }

 private:
  T it_ = nullptr;
};

struct DestroyOperation {
  void operator()(cublasLtMatmulDesc_t it) const { GNOMON_LT(cublasLtMatmulDescDestroy)(it); }
};
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t it) const { GNOMON_LT(cublasLtMatrixLayoutDestroy)(it); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t it) const {
    GNOMON_LT(cublasLtMatmulPreferenceDestroy)(it);
  }
};
struct DestroyHandle {
  void operator()(cublasLtHandle_t it) const { GNOMON_LT(cublasLtDestroy)(it); }
};
using Operation = Owned<cublasLtMatmulDesc_t, DestroyOperation>;
using Layout = Owned<cublasLtMatrixLayout_t, DestroyLayout>;
using Preference = Owned<cublasLtMatmulPreference_t, DestroyPreference>;
using LibraryHandle = Owned<cublasLtHandle_t, DestroyHandle>;

inline void create(Layout& layout, cudaDataType_t type, int64_t rows, int64_t columns,
                   int64_t leading) {
  check(GNOMON_LT(cublasLtMatrixLayoutCreate)(layout.put(), type, static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(columns), leading),
        "cublasLtMatrixLayoutCreate");
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  check(GNOMON_LT(cublasLtMatmulDescSetAttribute)(description, attribute, &value, sizeof(value)),
        fmt::format("cublasLtMatmulDescSetAttribute of {}", static_cast<int>(attribute)));
}

inline constexpr uint32_t kPointerAlignment = 16;

// Algorithms with this workspace. Without `split` none splits what is summed over; with it, parts
// are summed in FP32 in one order, in the workspace.
inline void prefer(Preference& preference, uint64_t workspace_bytes, bool split) {
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(GNOMON_LT(cublasLtMatmulPreferenceSetAttribute)(preference.get(), attribute, &value,
                                                          sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  check(GNOMON_LT(cublasLtMatmulPreferenceCreate)(preference.put()),
        "cublasLtMatmulPreferenceCreate");
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Alignment of the pointers; the library assumes 256 bytes.
  for (auto alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(alignment, kPointerAlignment);
  }
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(split ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                  : CUBLASLT_REDUCTION_SCHEME_NONE));
}

}  // namespace gnomon::cuda
