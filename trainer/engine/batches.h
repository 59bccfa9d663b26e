// The tokens that an engine reads: the micro-batches of a step, and the held-out batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/token_shards.h"
#include "trainer/engine/data_order.h"
#include "trainer/engine/engine.h"

namespace gnomon {

class Batches {
 public:
  // Opens the data. Throws ConfigError where vocabulary or sequences do not fit it.
  explicit Batches(const EngineConfig& config);

  const std::string& content_hash() const { return data_.info.content_hash; }

  // Begins a step: hash() is 0.
  void begin() { hash_ = 0; }
  // Reads a micro-batch of a step as `faults` leave it. `order_seed` as EngineMode has it.
  void read(int64_t step, int64_t micro_batch, const FaultView& faults, int64_t order_seed);
  // The micro-batch that was read last: sequences × T tokens, and what follows each.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> targets() const { return targets_; }
  // Hashes the sequences read since begin(), whatever their order.
  uint64_t hash() const { return hash_; }

  std::span<const int32_t> heldout_tokens() const { return heldout_tokens_; }
  std::span<const int32_t> heldout_targets() const { return heldout_targets_; }
  // Tokens of an evaluation's last micro-batch; 0 where all are whole.
  int64_t last_of_heldout() const;

 private:
  BatchConfig batch_;
  uint64_t seed_;
  int32_t vocabulary_;
  Dataset data_;
  DataOrder order_;
  uint64_t hash_ = 0;
  std::vector<int32_t> sequence_;  // T + 1 tokens
  std::vector<int32_t> tokens_, targets_;
  std::vector<int32_t> heldout_tokens_, heldout_targets_;
};

}  // namespace gnomon
