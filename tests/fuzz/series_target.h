// Datasets whose shards and description may disagree.
#pragma once

#include <cstdint>
#include <span>

namespace gnomon::fuzz {

// Byte 0 has flags of the whole dataset, byte 1 says the vocabulary; four bytes for each shard
// follow (series_target.cc). A description that lies in nothing is opened and gives back the
// tokens as they were written; any other is opened with as many tokens as it says or refused with
// an Error.
void run_series(std::span<const uint8_t> input);

}  // namespace gnomon::fuzz
