// Neighbours in a row of a matrix, as bit patterns: eight read at once where rows allow it, or one.
#pragma once

#include "kernels/cuda/kernel.h"
#include "kernels/statistics.h"

namespace gnomon::cuda {

template <int kEach>
struct Patterns {
  uint32_t words[(kEach + 1) / 2] = {};
  __device__ uint32_t operator[](int i) const { return words[i / 2] >> (i % 2 * 16) & 0xFFFFu; }
};

template <int kEach>
__device__ Patterns<kEach> load_patterns(const bf16* x) {
  if constexpr (kEach == 8) {
    const Bits128 v = *reinterpret_cast<const Bits128*>(x);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    static_assert(kEach == 1);
    return {{x->bits}};
  }
}

__device__ inline double exact_value(uint32_t pattern) {
  return static_cast<double>(float_of(pattern << 16));
}

inline int64_t stride_of(const MatrixView& x) { return x.stride == 0 ? x.columns : x.stride; }

// True when every row consists of eights that may be read at once.
inline bool in_eights(const MatrixView& x) {
  return x.columns % 8 == 0 && stride_of(x) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % sizeof(Bits128) == 0;
}

}  // namespace gnomon::cuda
