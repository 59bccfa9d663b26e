// XXH3 hashes: fast enough to hash every weight at every step. They detect damage and divergence,
// not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gnomon {

uint64_t hash64(const void* data, size_t size, uint64_t seed = 0);

// A hash of the same use that many threads of a CPU or a device can make parts of, in any order:
// the sum modulo 2⁶⁴ of term(i, w_i) over the data as little-endian 64-bit words w_i, the last one
// filled up with zeros, and of the size in bytes. Each term is a bijection of its word (the
// finaliser of SplitMix64, Steele et al. 2014), so that one changed word always changes the sum.
struct PlacedHash {
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15;
  // The term of `word` at place `place`, counted from 0. Made of arithmetic alone, so that devices
  // can use it too.
  static constexpr uint64_t term(uint64_t place, uint64_t word) {
    uint64_t z = word + (place + 1) * kStep;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // The sum of the terms of `size` bytes; the first of them is that of place `first`.
  static uint64_t terms(const void* data, size_t size, uint64_t first = 0);
  // The hash of data of this size whose terms have this sum.
  static constexpr uint64_t of(uint64_t sum_of_terms, uint64_t size) {
    return sum_of_terms + term(~uint64_t{0}, size);
  }
};

// 16 lower-case hexadecimal digits.
std::string hex64(uint64_t value);

// 128-bit hash of a stream of bytes, as 32 lower-case hexadecimal digits.
class Hash128 {
 public:
  Hash128();
  ~Hash128();
  Hash128(const Hash128&) = delete;
  Hash128& operator=(const Hash128&) = delete;
  void update(const void* data, size_t size);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gnomon
