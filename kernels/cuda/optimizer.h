// Updates and the gradient's norm on the device (the meanings are those of BackendBase). Every
// function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

// Pointers of the spans are 16-byte aligned. Adds to `sums`, on the device.
void update(const UpdateStep& step, std::span<const float> gradient, const MomentSpans& moments,
            std::span<float> master, std::span<bf16> weight, StateSums* sums, Stream stream);

// *sum = Σ x², in one order whatever the device. `scratch` has kSquaresScratch doubles.
inline constexpr int64_t kSquaresScratch = 1024;
void sum_of_squares(const float* x, int64_t count, double* sum, double* scratch, Stream stream);

}  // namespace gnomon::cuda
