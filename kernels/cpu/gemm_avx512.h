// Products of BF16 matrices with AVX512-BF16 instructions, FP32 accumulation in registers: the
// right operand is packed into panels that stay in the second cache level, tiles of six rows pass
// over them. The bits do not depend on the number of threads. A file of its own, compiled for such
// processors: ask avx512_gemm_runs() first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/shapes.h"
#include "numerics/formats.h"

namespace gnomon::cpu {

// True when this build and this processor have it and it suits the shape: what is summed over is
// even in number where it lies along the rows of A or B.
bool avx512_gemm_runs(const GemmShape& shape);

int64_t avx512_gemm_scratch_bytes(int threads, const GemmShape& shape);

// As Backend::gemm; Out is bf16 or float, `alphas` one number or one for each column. `scratch` is
// 64-byte aligned.
template <class Out>
void avx512_gemm(int threads, const GemmShape& shape, std::span<const float> alphas, const bf16* a,
                 const bf16* b, Out* c, bool accumulate, std::byte* scratch);

}  // namespace gnomon::cpu
