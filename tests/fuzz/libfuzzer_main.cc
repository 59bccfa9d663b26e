// One target behind libFuzzer's entry point; GNOMON_FUZZ_TARGET names it.
#include <algorithm>
#include <cstdlib>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto target = std::ranges::find(gnomon::fuzz::reader_targets(), GNOMON_FUZZ_TARGET,
                                               &gnomon::fuzz::Target::name);
  if (target == gnomon::fuzz::reader_targets().end()) std::abort();
  gnomon::fuzz::run(*target, {data, size});
  return 0;
}
