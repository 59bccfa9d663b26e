// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): randomness
// as a pure function of a key and a counter, so that any step can be replayed without any generator
// state.
#pragma once

#include <array>
#include <cstdint>

namespace gnomon {

// Four random 32-bit words for (key, counter).
constexpr std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// The same, with the counter given as (site, index): convenient for "element `index` of stream
// `site`".
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t stream, uint64_t index) {
  return philox(key, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                      static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
}

// Uniform in [0, 1) with 24 bits.
constexpr float philox_uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

}  // namespace gnomon
