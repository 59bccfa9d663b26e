// The batch of a step as a pure function of (data, seed, step). The data is one long token
// sequence, cut into sequences of T tokens: sequence i covers tokens [i·T, i·T + T], its last token
// being a target only. Every epoch visits each sequence once in an order of its own; steps run
// across epoch and shard boundaries.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace gnomon {

// A permutation of [0, size) keyed by (seed, epoch), computed element by element: a Feistel network
// whose round function is Philox, over the next power of four, with cycle walking (Black & Rogaway,
// CT-RSA 2002).
class Permutation {
 public:
  // `size` is at least 1 and below 2^62.
  Permutation(int64_t size, uint64_t seed, int64_t epoch);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  uint64_t size_;
  uint64_t key_;
  uint64_t epoch_;
  int half_bits_;
};

class DataOrder {
 public:
  // The data has `tokens` tokens, sequences have `sequence_tokens`; a step takes
  // `sequences_per_step`. Throws Error when the data is shorter than one sequence and its last
  // target.
  DataOrder(int64_t tokens, int64_t sequence_tokens, int64_t sequences_per_step, uint64_t seed);

  int64_t sequences_per_epoch() const { return sequences_; }
  // Number of the sequence (which of the data's) at `position` of step 1, 2, ...
  int64_t sequence(int64_t step, int64_t position) const;
  // First token of that sequence.
  int64_t first_token(int64_t step, int64_t position) const {
    return sequence(step, position) * sequence_tokens_;
  }

 private:
  int64_t sequence_tokens_;
  int64_t per_step_;
  int64_t sequences_;
  uint64_t seed_;
};

// Uniform random tokens for one sequence of T + 1: what the fault corrupt_batch puts in place of
// the data's.
void random_tokens(uint64_t seed, int64_t step, int64_t position, int32_t vocabulary,
                   std::span<int32_t> tokens);

}  // namespace gnomon
