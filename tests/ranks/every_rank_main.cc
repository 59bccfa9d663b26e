// Every rank runs every test.
#include <gtest/gtest.h>

#include "kernels/comm/start_collectives.h"
#include "tests/ranks/ranks.h"

namespace gnomon::test {
EngineRanks& ranks() {
  static EngineRanks all;
  return all;
}
}  // namespace gnomon::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto collectives = gnomon::start_collectives(60);
  gnomon::test::ranks().collectives = collectives.get();
  if (collectives->rank() != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  int status = RUN_ALL_TESTS();
  if (status != 0) std::fprintf(stderr, "rank %d failed\n", collectives->rank());
  return status;
}
