// What ranks send each other, made and read on the device (kernels/comm/wires.h has the meanings).
// Pointers are of the device's memory; every function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/comm/wires.h"
#include "kernels/cuda/launch.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

// Which elements share a scale: those of a block, or of a tensor where its first elements are
// given.
struct WireScales {
  const int64_t* tensor_starts = nullptr;  // ascending from 0
  int64_t tensors = 0;
};

// amaxes[scale] = max |x| of those elements, infinite where one is not finite, as the bits of an
// FP32. `x` is all elements, `amaxes` those of all scales: of tensors without such an element 0, of
// blocks as they are. E is float or bf16. Elements begin at a multiple of WireLayout::kBlock.
template <class E>
void wire_amaxes(const WireScales& by, const E* x, const WireRange& elements, uint32_t* amaxes,
                 Stream stream);
// largest[i] = max over `ranks` of amaxes[rank·stride + i].
void wire_largest(const uint32_t* amaxes, int64_t stride, int ranks, int64_t count,
                  uint32_t* largest, Stream stream);
// The power of two for each amax; NaN where it is infinite.
void wire_scales(Wire wire, const uint32_t* amaxes, int64_t count, float* scales, Stream stream);

// codes[i] is that of element elements.begin + i. `scales` are those of all elements.
template <class E>
void wire_encode(Wire wire, const WireScales& by, const E* x, const WireRange& elements,
                 const float* scales, uint8_t* codes, Stream stream);
template <class E>
void wire_decode(Wire wire, const WireScales& by, const uint8_t* codes, const WireRange& elements,
                 const float* scales, E* x, Stream stream);

// What the ranks sent of the same elements, in rank order: rank r's begin at r·stride.
struct WireTerms {
  const uint8_t* codes = nullptr;
  int64_t codes_stride = 0;
  const float* scales = nullptr;  // from the scale `first_scale` on
  int64_t scales_stride = 0;
  int64_t first_scale = 0;
  int ranks = 0;
};
// sums[elements.begin + i] = Σ what the codes i stand for, in FP32 and in rank order.
void wire_sum(Wire wire, const WireScales& by, const WireTerms& terms, const WireRange& elements,
              float* sums, Stream stream);
// sums[i] = Σ values[rank·stride + i], in FP32 and in rank order.
void wire_sum_values(const float* values, int64_t stride, int ranks, int64_t count, float* sums,
                     Stream stream);

}  // namespace gnomon::cuda
