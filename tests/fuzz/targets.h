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

// Those of the program at hand: of the readers (targets.cc) or of the daemon (daemon_targets.cc).
std::span<const Target> targets();
// nullptr when there is none of that name.
const Target* find_target(std::string_view name);

// Ends the program when `holds` is false, so that every driver sees it.
void require(bool holds, const char* what);
std::string_view text_of(std::span<const uint8_t> input);

}  // namespace gnomon::fuzz
