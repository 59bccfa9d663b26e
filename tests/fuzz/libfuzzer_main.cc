// One target behind libFuzzer's entry point; GNOMON_FUZZ_TARGET names it.
#include <cstdlib>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const gnomon::fuzz::Target* const target = gnomon::fuzz::find_target(GNOMON_FUZZ_TARGET);
  if (target == nullptr) std::abort();
  gnomon::fuzz::run(*target, {data, size});
  return 0;
}
