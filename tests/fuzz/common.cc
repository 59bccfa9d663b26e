#include <fcntl.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/files.h"
#include "tests/fuzz/allocations.h"
#include "tests/fuzz/targets.h"

namespace gnomon::fuzz {

void run(const Target& target, std::span<const uint8_t> input) {
  if (target.memory_factor == kAnyMemory) {
    target.run(input);
    return;
  }
  const AllocationLimit limit(kMemoryFree + target.memory_factor * std::ssize(input));
  target.run(input);
}

void require(bool holds, const char* what) {
  if (holds) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

void write_plainly(const std::filesystem::path& path, std::string_view content) {
  write_all(FileDescriptor::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600).get(), content, path);
}

std::string_view text_of(std::span<const uint8_t> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

}  // namespace gnomon::fuzz
