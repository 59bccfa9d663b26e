// Normal random numbers as a pure function of (seed, stream, index): Box-Muller over Philox.
#pragma once

#include <cstdint>
#include <span>

namespace gnomon {

// What weights of step 0 are drawn from: values[i] normal with standard deviation `deviation`.
void fill_normal(uint64_t seed, uint64_t stream, double deviation, std::span<float> values);

// values[i] ← values[i] · (1 + scale·N), N drawn from (seed, first + i).
void perturb_values(uint64_t seed, int64_t first, double scale, std::span<float> values);

}  // namespace gnomon
