// What is fuzzed: the readers of everything that comes from outside, and the decision core
// (decide_target.h). A target takes any bytes and returns when they were read or refused with an
// Error; anything else (a crash, a sanitizer's finding, another exception, a value that does not
// survive writing and reading again, memory that the input's size does not explain) is a bug.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace gnomon::fuzz {

struct Target {
  std::string_view name;  // also of its folder in tests/fuzz/corpus
  void (*run)(std::span<const uint8_t> input);
  uint64_t mutations = 10'000;  // of the kept corpus that the test of every build tries
  int64_t memory_factor = 64;   // what it may hold: so many times its input and kMemoryFree
};
inline constexpr int64_t kMemoryFree = 1 << 20;  // bytes, of messages, paths and buffers
// The memory_factor of a Target that reads no file.
inline constexpr int64_t kAnyMemory = 0;

std::span<const Target> reader_targets();   // targets.cc: libFuzzer's too
std::span<const Target> daemon_targets();   // daemon_targets.cc
std::span<const Target> trainer_targets();  // trainer_targets.cc

// Gives `input` to the target, whose memory is limited (allocations.h).
void run(const Target& target, std::span<const uint8_t> input);

// Ends the program when `holds` is false, so that every driver sees it.
void require(bool holds, const char* what);
// Makes or replaces a file; it need not survive the machine.
void write_plainly(const std::filesystem::path& path, std::string_view content);
std::string_view text_of(std::span<const uint8_t> input);

}  // namespace gnomon::fuzz
