#include "trainer/engine/batches.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"

namespace gnomon {
namespace {

Dataset open_data(const EngineConfig& config) {
  Dataset data = Dataset::open(config.data);
  if (data.info.vocabulary > config.model.vocabulary) {
    throw ConfigError(
        "model", 0, "vocabulary", std::to_string(config.model.vocabulary),
        fmt::format("at least {}, the vocabulary of {}", data.info.vocabulary, config.data));
  }
  int64_t needed = int64_t{config.batch.tokens} + 1;
  for (const TokenShards* shards : {&data.train, &data.heldout}) {
    if (shards->tokens() < needed) {
      throw ConfigError("batch", 0, "tokens", std::to_string(config.batch.tokens),
                        fmt::format("at most {}: {} has no longer {} sequence",
                                    std::max<int64_t>(shards->tokens() - 1, 0), config.data,
                                    shards == &data.train ? "training" : "held-out"));
    }
  }
  data.train.set_vocabulary(config.model.vocabulary);
  data.heldout.set_vocabulary(config.model.vocabulary);
  return data;
}

int64_t sequences_per_step(const BatchConfig& batch) {
  return int64_t{1} * batch.sequences * batch.accumulation;
}

void split_sequence(std::span<const int32_t> sequence, std::vector<int32_t>& tokens,
                    std::vector<int32_t>& targets) {
  tokens.insert(tokens.end(), sequence.begin(), sequence.end() - 1);
  targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
}

}  // namespace

Batches::Batches(const EngineConfig& config)
    : batch_(config.batch),
      seed_(static_cast<uint64_t>(config.seed)),
      vocabulary_(config.model.vocabulary),
      data_(open_data(config)),
      order_(data_.train.tokens(), batch_.tokens, sequences_per_step(batch_), seed_) {
  sequence_.resize(static_cast<size_t>(batch_.tokens) + 1);
  const size_t micro_batch = static_cast<size_t>(batch_.sequences) * (sequence_.size() - 1);
  tokens_.reserve(micro_batch);
  targets_.reserve(micro_batch);
  const int64_t heldout =
      std::min<int64_t>(config.heldout_sequences, (data_.heldout.tokens() - 1) / batch_.tokens);
  for (int64_t i = 0; i < heldout; ++i) {
    data_.heldout.read(i * batch_.tokens, sequence_);
    split_sequence(sequence_, heldout_tokens_, heldout_targets_);
  }
}

void Batches::read(int64_t step, int64_t micro_batch, const FaultView& faults, int64_t order_seed) {
  tokens_.clear();
  targets_.clear();
  const int64_t from = faults.batch_of(step);
  for (int64_t i = 0; i < batch_.sequences; ++i) {
    int64_t position = micro_batch * batch_.sequences + i;
    if (order_seed != 0) {
      position = Permutation(sequences_per_step(batch_), static_cast<uint64_t>(order_seed),
                             step)(position);
    }
    if (faults.corrupt(step)) {
      random_tokens(seed_, step, position, vocabulary_, sequence_);
    } else {
      data_.train.read(order_.first_token(from, position), sequence_);
    }
    hash_ += hash64(sequence_.data(), sequence_.size() * sizeof(int32_t));
    split_sequence(sequence_, tokens_, targets_);
  }
}

int64_t Batches::last_of_heldout() const {
  return std::ssize(heldout_tokens_) % (int64_t{1} * batch_.sequences * batch_.tokens);
}

}  // namespace gnomon
