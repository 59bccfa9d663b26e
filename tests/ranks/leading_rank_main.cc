// Rank 0 runs the tests, the others follow its engines.
#include <gtest/gtest.h>

#include "kernels/comm/start_collectives.h"
#include "tests/ranks/ranks.h"
#ifdef GNOMON_EMULATED_RANKS
#include "tests/ranks/emulated_ranks.h"
#endif

namespace gnomon::test {
EngineRanks& ranks() {
  static EngineRanks all;
  return all;
}
}  // namespace gnomon::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto collectives = gnomon::start_collectives(120);
  gnomon::EngineRanks& ranks = gnomon::test::ranks();
  ranks.collectives = collectives.get();
#ifdef GNOMON_EMULATED_RANKS
  ranks.backends = gnomon::test::emulated_backends();
#endif
  try {
    if (collectives->rank() != 0) {
      gnomon::follow_engines(ranks);
      return 0;
    }
    int status = RUN_ALL_TESTS();
    gnomon::end_followers(ranks);
    return status;
  } catch (const std::exception& error) {
    collectives->abort(error.what());
  }
}
