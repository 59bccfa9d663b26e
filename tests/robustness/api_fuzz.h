// Any order of legal and illegal calls of the API, with a SIGKILL or SIGTERM after any of them
// (docs/robustness.md): whole sequences by seed, and the shortest one that still fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gnomon::robustness {

struct ApiFuzzOptions {
  double seconds = 60;
  int64_t sequences = 0;         // 0 = as many as there is time for
  std::optional<uint64_t> seed;  // of the first sequence; each one is the next number
  int64_t calls = 150;           // of a sequence
  std::string only;              // "0-12,40": of one sequence, these calls alone
  std::string keep;              // folder for what a failing sequence left; empty: it is not kept
  bool stop_at_failure = false;
};

// Prints what was played and what failed. The number of sequences that failed.
int64_t fuzz_api(const ApiFuzzOptions& options);

// "0-12,40" and back. Throws ConfigError (key calls).
std::vector<int64_t> parse_calls(const std::string& text);
std::string calls_as_text(const std::vector<int64_t>& calls);

}  // namespace gnomon::robustness
