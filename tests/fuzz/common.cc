#include <fmt/format.h>

#include <cstdlib>

#include "tests/fuzz/targets.h"

namespace gnomon::fuzz {

const Target* find_target(std::string_view name) {
  for (const Target& target : targets()) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

void require(bool holds, const char* what) {
  if (holds) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

std::string_view text_of(std::span<const uint8_t> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

}  // namespace gnomon::fuzz
