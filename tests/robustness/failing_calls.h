// What a test and the library failing_calls.cc in its daemon share, as one small file in memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace gnomon::robustness {

struct FailingCalls {
  std::atomic<int32_t> error;         // an errno; 0 = every call goes through
  std::atomic<int64_t> calls_before;  // so many go well first
  std::atomic<int64_t> failed;        // how many have failed, for the test to see
};

}  // namespace gnomon::robustness
