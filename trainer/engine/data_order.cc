#include "trainer/engine/data_order.h"

#include <fmt/format.h>

#include <bit>

#include "base/errors.h"
#include "base/philox.h"

namespace gnomon {
namespace {

constexpr int kFeistelRounds = 8;
// Keeps the streams of different uses of one seed apart.
constexpr uint64_t kOrderStream = 0x6F72646572;  // "order"
constexpr uint64_t kCorruptStream = 0x636F7272;  // "corr"

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch)
    : size_(static_cast<uint64_t>(size)),
      key_(seed ^ (kOrderStream << 24)),
      epoch_(static_cast<uint64_t>(epoch)) {
  GNOMON_ASSERT(size >= 1 && size < (int64_t{1} << 62));
  int bits = static_cast<int>(std::bit_width(size_ - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kFeistelRounds; ++round) {
    std::array<uint32_t, 4> word =
        philox(key_, {static_cast<uint32_t>(right), round, static_cast<uint32_t>(epoch_),
                      static_cast<uint32_t>(epoch_ >> 32)});
    uint64_t next = left ^ (word[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t index) const {
  GNOMON_ASSERT(index >= 0 && static_cast<uint64_t>(index) < size_);
  uint64_t value = static_cast<uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

DataOrder::DataOrder(int64_t tokens, int64_t sequence_tokens, int64_t sequences_per_step,
                     uint64_t seed)
    : sequence_tokens_(sequence_tokens),
      per_step_(sequences_per_step),
      sequences_((tokens - 1) / sequence_tokens),
      seed_(seed) {
  if (tokens < sequence_tokens + 1) {
    throw Error(fmt::format("the data has {} tokens; one sequence needs at least {}", tokens,
                            sequence_tokens + 1));
  }
}

int64_t DataOrder::sequence(int64_t step, int64_t position) const {
  GNOMON_ASSERT(step >= 1 && position >= 0 && position < per_step_);
  int64_t index = (step - 1) * per_step_ + position;
  return Permutation(sequences_, seed_, index / sequences_)(index % sequences_);
}

void random_tokens(uint64_t seed, int64_t step, int64_t position, int32_t vocabulary,
                   std::span<int32_t> tokens) {
  uint64_t stream = static_cast<uint64_t>(step) << 20 ^ static_cast<uint64_t>(position);
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint32_t word = philox(seed ^ (kCorruptStream << 24), stream, i)[0];
    tokens[i] = static_cast<int32_t>((uint64_t{word} * static_cast<uint64_t>(vocabulary)) >> 32);
  }
}

}  // namespace gnomon
