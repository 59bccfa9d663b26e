#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "base/errors.h"

namespace gnomon {

uint64_t hash64(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

uint64_t PlacedHash::terms(const void* data, size_t size, uint64_t first) {
  constexpr size_t kWord = sizeof(uint64_t);
  const auto* bytes = static_cast<const unsigned char*>(data);
  const size_t words = size / kWord;
  uint64_t sum = 0;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * kWord, kWord);
    sum += term(first + i, word);
  }
  if (size % kWord != 0) {
    uint64_t last = 0;
    std::memcpy(&last, bytes + words * kWord, size % kWord);
    sum += term(first + words, last);
  }
  return sum;
}

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

struct Hash128::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hash128::Hash128() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
Hash128::~Hash128() = default;
void Hash128::update(const void* data, size_t size) {
  XXH3_128bits_update(state_->xxh, data, size);
}
std::string Hash128::hex() const {
  XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace gnomon
