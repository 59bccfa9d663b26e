// What is fuzzed: the readers of everything that comes from outside, and the decision core
// (decide_target.h). A target takes any bytes and
// returns when they were read or refused with an Error; anything else (a crash, a sanitizer's
// finding, another exception, a value that does not survive writing and reading again) is a bug.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gnomon::fuzz {

struct Target {
  std::string_view name;  // also of its folder in tests/fuzz/corpus
  void (*run)(std::span<const uint8_t> input);
  uint64_t mutations = 10'000;  // of the kept corpus that the test of every build tries
};

// safetensors, shard, plan, policy, json, decide.
std::span<const Target> targets();
// nullptr when there is none of that name.
const Target* find_target(std::string_view name);

}  // namespace gnomon::fuzz
