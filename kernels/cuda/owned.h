// Descriptions that cuBLASLt makes and takes back, and what is set in them. Only for files of this
// folder.
#pragma once

#include <cublasLt.h>
#include <fmt/format.h>

#include <cstdint>

#include "kernels/cuda/check.h"

namespace gnomon::cuda {

template <class T, cublasStatus_t (*kDestroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (it_ != nullptr) kDestroy(it_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* put() { return &it_; }
  T get() const { return it_; }

 private:
  T it_ = nullptr;
};

using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

inline void create(Layout& layout, cudaDataType_t type, int64_t rows, int64_t columns,
                   int64_t leading) {
  check(cublasLtMatrixLayoutCreate(layout.put(), type, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), leading),
        "cublasLtMatrixLayoutCreate");
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)),
        fmt::format("cublasLtMatmulDescSetAttribute of {}", static_cast<int>(attribute)));
}

using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Algorithms with this workspace that do not split what is summed over.
inline void prefer_whole_sums(Preference& preference, uint64_t workspace_bytes) {
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  check(cublasLtMatmulPreferenceCreate(preference.put()), "cublasLtMatmulPreferenceCreate");
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
}

}  // namespace gnomon::cuda
