// XXH3 hashes: fast enough to hash every weight at every step. They detect damage and divergence,
// not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gnomon {

uint64_t hash64(const void* data, size_t size, uint64_t seed = 0);

// 16 lower-case hexadecimal digits, and back. parse_hex64 throws Error on anything else.
std::string hex64(uint64_t value);
uint64_t parse_hex64(const std::string& text);

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
